"""How often the intervals of ``tc.evaluate`` cover, at the sizes where no check warns.

    python bench/log_coverage.py [LOGS] [WORLD …]

Nothing is chosen by coverage. Every world has the same rules: the behaviour takes the best action with probability ½
and any action otherwise, the target with probability .9, discount .95, episodes are cut off after 100 steps; Boyan's
chain and the random MDP are those of ``python -m reproduction logs``. A log has 50, 100, 200, … episodes: the first
size at which no check warns on any of ten logs. Coverage is then counted on other logs.
"""

import sys
import time

import numpy as np

import twoclock as tc
from reproduction.experiments import logs
from reproduction.experiments.logs import Logged

LEVEL, TRIES, LARGEST = 0.95, 10, 25_600
NAMES = {"frozen lake": "FrozenLake-v1", "cliff": "CliffWalking-v1", "taxi": "Taxi-v4"}


def world(name):
    """What is logged, and the longest episode."""
    if name not in NAMES:
        found, _, longest, _ = logs.worlds()[name]
        return found, longest
    mdp, start = tc.models.from_gymnasium(NAMES[name], gamma=0.95)
    best, any_ = mdp.soft_policy(0), np.full((mdp.states, mdp.actions), 1 / mdp.actions)
    return Logged(mdp, start, 0.5 * best + 0.5 * any_, 0.9 * best + 0.1 * any_), 100


def value(found, longest, episodes, seed, **options):
    columns = found.draw(episodes, longest, seed)
    log = tc.logs.read(columns, next_state="next_state", episode="episode", step="step", propensity="propensity")
    return tc.evaluate(log, found.target, found.gamma, level=LEVEL, bootstrap=0, **options)


def size_of(found, longest):
    """The first size at which no check warns, and which checks warned at smaller sizes."""
    episodes, why = 50, {}
    while episodes <= LARGEST:
        warned = set()
        for seed in range(TRIES):
            bad = value(found, longest, episodes, 500_000 + seed).diagnostics.query("grade in ('warning', 'fatal')")
            warned |= set(bad["name"])
            if warned:
                break
        if not warned:
            return episodes, why
        why[episodes] = sorted(warned)
        episodes *= 2
    return None, why


def main(count, names):
    for name in names:
        began = time.process_time()
        found, longest = world(name)
        episodes, why = size_of(found, longest)
        if episodes is None:
            print(f"{name}: some check warns up to {LARGEST:,} episodes: {why[LARGEST]}", flush=True)
            continue
        tables = [value(found, longest, episodes, 900_000 + seed, compare=False).table.iloc[0] for seed in range(count)]
        low, high, at, se = (np.array([row[key] for row in tables], float) for key in ("low", "high", "value", "se"))
        covered = ((low <= found.truth) & (found.truth <= high)).mean()
        error = 1.96 * np.sqrt(covered * (1 - covered) / count)
        before = ", ".join(f"{size}: {'+'.join(names)}" for size, names in why.items()) or "nothing before"
        print(
            f"{name}: {episodes} episodes ({before}); covered {covered:.3f} ± {error:.3f} of {count} logs, mean se "
            f"{se.mean() / at.std():.3f} of the spread, bias {(at.mean() - found.truth) / at.std():+.2f} spreads; "
            f"{time.process_time() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    named = [word for word in sys.argv[1:] if not word.isdigit()]
    main((numbers or [500])[0], named or ["random", "boyan", *NAMES])
