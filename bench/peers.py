"""d3rlpy's FQE and scope-rl's estimators beside ours, on the same logs.

    python bench/peers.py write DIR [LOGS]    # twoclock's environment: logs as Parquet, the truth, our estimates
    python bench/peers.py run DIR             # the peers' environment: pip install d3rlpy scope-rl pyarrow
    python bench/peers.py table DIR           # error, coverage, length and seconds of all, as Markdown

The peers pin other versions (Gymnasium 1.0, PyTorch), so they run in a separate environment, on files.
FQE of d3rlpy evaluates a deterministic policy and has no interval, so it is tried on the deterministic ones alone.
Episodes in scope-rl have one length and no truncation: those that ended are filled up with steps that earn 0 and change
no ratio.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

OURS = ("lstdq", "dr", "pdis", "wis")
FQE_STEPS, FQE_LOGS = 3_000, 4  # it takes some 20 s of a core a log


def worlds():
    """Name → what is logged, a target's table, episodes of a log and the longest."""
    from reproduction.experiments import logs

    found = {}
    for name in ("boyan", "random"):
        world, episodes, longest, title = logs.worlds()[name]
        certain = np.eye(world.target.shape[1])[world.target.argmax(axis=1)]
        found[name] = world, world.target, episodes, longest, title
        found[f"{name}-certain"] = world, certain, episodes, longest, f"{title}, a policy that is certain"
    return found


def write(folder, logs):
    import twoclock as tc

    folder.mkdir(parents=True, exist_ok=True)
    rows, about = [], {}
    for name, (world, target, episodes, longest, title) in worlds().items():
        truth = float(world.start @ world.mdp.values(target))
        about[name] = {
            "title": title, "truth": truth, "gamma": world.gamma, "target": target.tolist(), "longest": longest,
            "logs": logs,
        }  # fmt: skip
        for seed in range(logs):
            frame = pd.DataFrame(world.draw(episodes, longest, 10_000 + seed))
            frame.to_parquet(folder / f"{name}-{seed}.parquet", index=False)
            log = tc.logs.read(frame, next_state="next_state", episode="episode", step="step", propensity="propensity")
            for estimator in OURS:
                began = time.perf_counter()
                asked = {"estimator": estimator, "bootstrap": 0, "compare": False}
                try:
                    estimate = tc.evaluate(log, target, world.gamma, **asked).table.iloc[0][["value", "low", "high"]]
                except tc.InputError:  # no episode of the log is possible under the policy
                    estimate = [np.nan] * 3
                rows.append((name, f"twoclock {estimator}", *estimate, time.perf_counter() - began))
    (folder / "about.json").write_text(json.dumps(about))
    _keep(rows, folder / "ours.csv")


def run(folder):
    about, rows = json.loads((folder / "about.json").read_text()), []
    for name, world in about.items():
        target = np.array(world["target"])
        certain = bool((target.max(axis=1) == 1).all())
        for seed in range(world["logs"]):
            frame = pd.read_parquet(folder / f"{name}-{seed}.parquet")
            Q = None
            if certain and seed < FQE_LOGS:
                began = time.perf_counter()
                Q = fitted(frame, target, world["gamma"], seed)
                first = frame[frame["step"] == 0]["state"].to_numpy()
                value = float((Q[first] * target[first]).sum(axis=1).mean())
                rows.append((name, "d3rlpy FQE", value, np.nan, np.nan, time.perf_counter() - began))
            rows += [(name, *row) for row in ratios(frame, target, world["gamma"], world["longest"], Q)]
        print(name, "done", flush=True)
    _keep(rows, folder / "peers.csv")
    versions = {peer: importlib.metadata.version(peer) for peer in ("d3rlpy", "scope-rl", "torch")}
    (folder / "versions.json").write_text(json.dumps(versions))


def fitted(frame, target, gamma, seed):
    """Q of every state and action by d3rlpy's FQE, with states as one-hot vectors."""
    import d3rlpy
    import torch

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    states, actions = target.shape
    last = (frame["episode"] != frame["episode"].shift(-1)).to_numpy()
    ended = frame["terminated"].to_numpy()
    data = d3rlpy.dataset.MDPDataset(
        np.eye(states, dtype=np.float32)[frame["state"]], frame["action"].to_numpy(),
        frame["reward"].to_numpy(np.float32), ended.astype(np.float32), (last & ~ended).astype(np.float32),
        action_space=d3rlpy.constants.ActionSpace.DISCRETE, action_size=actions,
    )  # fmt: skip
    policy = d3rlpy.algos.DiscreteBCConfig().create()
    policy.build_with_dataset(data)
    chosen = torch.as_tensor(target.argmax(axis=1))
    policy.impl.inner_predict_best_action = lambda x: chosen[
        x.argmax(dim=1)
    ]  # the policy itself, not one that imitates it
    fqe = d3rlpy.ope.DiscreteFQE(algo=policy, config=d3rlpy.ope.FQEConfig(gamma=gamma, learning_rate=1e-3))
    quiet = d3rlpy.logging.NoopAdapterFactory()
    fqe.fit(data, n_steps=FQE_STEPS, n_steps_per_epoch=FQE_STEPS, show_progress=False, logger_adapter=quiet)
    every = np.repeat(np.eye(states, dtype=np.float32), actions, axis=0)
    return fqe.predict_value(every, np.tile(np.arange(actions), states)).reshape(states, actions).astype(float)


def ratios(frame, target, gamma, longest, Q):
    """scope-rl's estimators with its bootstrap of trajectories."""
    from scope_rl.ope import discrete

    episodes, actions = int(frame["episode"].max()) + 1, target.shape[1]
    at = frame["episode"].to_numpy() * longest + frame["step"].to_numpy()
    action, reward = np.zeros(episodes * longest, int), np.zeros(episodes * longest)
    law, taken = np.tile(np.eye(actions)[0], (len(action), 1)), np.ones(len(action))
    action[at], reward[at], taken[at] = frame["action"], frame["reward"], frame["propensity"]
    law[at] = target[frame["state"]]
    values = np.zeros((len(action), actions))
    named = {
        "TIS": discrete.TrajectoryWiseImportanceSampling, "PDIS": discrete.PerDecisionImportanceSampling,
        "SNTIS": discrete.SelfNormalizedTIS, "SNPDIS": discrete.SelfNormalizedPDIS,
    }  # fmt: skip
    if Q is not None:
        values[at] = Q[frame["state"]]
        named |= {"DR": discrete.DoublyRobust}
    given = {
        "step_per_trajectory": longest, "action": action, "reward": reward, "evaluation_policy_action_dist": law,
        "gamma": float(gamma), "state_action_value_prediction": values,
    }  # fmt: skip
    for name, kind in named.items():
        # The self-normalised and the trajectory-wise ones take the propensity of each step, like the others.
        began, estimator = time.perf_counter(), kind()
        value = estimator.estimate_policy_value(pscore=taken, **given)
        band = estimator.estimate_interval(pscore=taken, n_bootstrap_samples=1000, random_state=0, **given)
        low, high = (next(v for k, v in band.items() if word in k) for word in ("lower", "upper"))
        yield f"scope-rl {name}", float(value), low, high, time.perf_counter() - began


def table(folder):
    about = json.loads((folder / "about.json").read_text())
    frame = pd.concat([pd.read_csv(folder / name) for name in ("ours.csv", "peers.csv")])
    print("| log | estimator | RMSE | covered | mean length | seconds |\n|---|---|---|---|---|---|")
    for (name, estimator), rows in frame.groupby(["world", "estimator"], sort=False):
        world = about[name]
        given = len(rows)
        rows = rows[rows["value"].notna()]
        if not len(rows):
            print(f"| {world['title']} | {estimator} | refused | | | |")
            continue
        error = np.sqrt(((rows["value"] - world["truth"]) ** 2).mean())
        covered = ((rows["low"] <= world["truth"]) & (world["truth"] <= rows["high"])).mean()
        known = rows["low"].notna().all()
        shown = f"{covered:.2f} | {(rows['high'] - rows['low']).mean():.3g}" if known else "no interval |"
        estimator += f" ({given} logs)" if given < world["logs"] else ""
        estimator += f", refused {given - len(rows)} of {given} logs" if given > len(rows) else ""
        print(f"| {world['title']} | {estimator} | {error:.3g} | {shown} | {rows['seconds'].mean():.3g} |")
    print(f"\n{next(iter(about.values()))['logs']} logs each; {(folder / 'versions.json').read_text()}")


def _keep(rows, path):
    pd.DataFrame(rows, columns=["world", "estimator", "value", "low", "high", "seconds"]).to_csv(path, index=False)


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    if verb == "write":
        write(Path(place), int(rest[0]) if rest else 20)
    else:
        {"run": run, "table": table}[verb](Path(place))
