"""Other threads, asyncio, forked children, signals: it works, or one line; no hang, and the state is unchanged."""

from __future__ import annotations

import re
import subprocess

import numpy as np

from faults._children import python

NAME = "threads, forks and signals"
TRIALS = 36
_LIMIT = 150  # seconds
HEAD = (
    f"""
import faulthandler
faulthandler.dump_traceback_later({_LIMIT - 10})
"""
    + """
import asyncio, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpy as np
import twoclock as tc
from faults.odd_logs import table, value
problem = tc.problems.quadratic(dim=2)
def solve(): return tc.solve(problem, tc.Fast(), 2000, 2, engine="xla")
def step(x, u, rng): return .5 * x + u + rng.normal(size=1)
def agent(): return tc.agents.run(tc.agents.Regulator(np.eye(1), np.eye(1)), step, 50, 1, x0=np.zeros(1), processes=1)
def evaluate(): return value(table())
def every():
    log = tc.logs.read(table(), next_state="next_state", episode="episode")
    return tc.evaluate(log, np.full((4, 2), .5), .9, estimator="all", bootstrap=0)
key = jax.random.key(0)  # before a fork, after which JAX itself may hang
def drawn(): return tc.problems.random_policy_evaluation(key, 5, 2, 2)
def sweep(): return tc.sweep({"a": problem}, {"b": tc.Fast()}, 50, 2)
def tune(): return tc.tune(problem, tc.Fast(), steps=200)
def regulator():
    r = tc.agents.Regulator(np.eye(1), np.eye(1)); x = np.zeros(1)
    for _ in range(5): r.observe(x, r.act(x), x)
def residual(): return tc.residual(problem, solve_once)
def learner():
    l = tc.Learner(lambda t, w, x: t - w, lambda t, w, x: w - x, tc.Fast(), 0., 0.); l.update_many(np.zeros(9))
call = globals()[sys.argv[1]]
"""
)
CALLS = ("solve", "agent", "evaluate", "every", "drawn", "sweep", "tune", "regulator", "learner", "residual")
BODIES = {
    "a forked child": """
solve_once = tc.solve(problem, tc.Fast(), 50, 2)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        call()
    except tc.InputError as error:
        assert "\\n" not in str(error)
    except BaseException as error:
        print(type(error).__name__, error, file=sys.stderr); os._exit(3)
    os._exit(0)
_, status = os.waitpid(child, 0)
sys.exit("the child ended with " + str(status) if status else 0)
""",
    "another thread": """
solve_once = tc.solve(problem, tc.Fast(), 50, 2)
found = []
def run():
    try:
        call()
    except tc.InputError: pass
    found.append(1)
threads = [threading.Thread(target=run) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
sys.exit(0 if len(found) == 3 else "a thread ended with an exception")
""",
    "asyncio": """
solve_once = tc.solve(problem, tc.Fast(), 50, 2)
async def main():
    await asyncio.gather(asyncio.to_thread(call), asyncio.to_thread(call))
    call()
asyncio.run(main())
""",
    "a handler of the user's own": """
solve_once = tc.solve(problem, tc.Fast(), 50, 2)
mine = lambda *_: None
signal.signal(signal.SIGTERM, mine)
call()
assert signal.getsignal(signal.SIGTERM) is mine, "the handler is lost"
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler of Ctrl-C is lost"
""",
    "x64 after overlapping runs": """
solve_once = tc.solve(problem, tc.Fast(), 50, 2)
def callback(t):
    like = jax.ShapeDtypeStruct(jnp.shape(t), t.dtype)
    return jax.pure_callback(lambda v: np.asarray(v), like, t, vmap_method="sequential")
def odd(n):
    time.sleep(n * float(sys.argv[2]))
    noise = lambda key: 0. * jax.random.normal(key)
    p = tc.problems.custom(lambda t, w, x: callback(t) + x, lambda t, w, x: w - t, noise, 1., 0.)
    tc.solve(p, tc.Standard(.1, .1), 300, 1)
threads = [threading.Thread(target=odd, args=(n,)) for n in range(3)]
[t.start() for t in threads]; call(); [t.join() for t in threads]
assert not jax.config.jax_enable_x64 and jnp.zeros(1).dtype == jnp.float32, "x64 stays on"
""",
    "a signal": """
solve_once = tc.solve(problem, tc.Fast(), 50, 2)
after = []
def strike(): os.kill(os.getpid(), signal.SIGINT); after.append("struck")
timer = threading.Timer(float(sys.argv[2]), strike); timer.start()
try:
    while len(after) < 3:
        call()
        if after: after.append("a call"); time.sleep(0.5)
    sys.exit("Ctrl-C is lost")
except KeyboardInterrupt: pass
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler of Ctrl-C is lost"
timer.join()
call()
""",
}


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    what = list(BODIES)[i % len(BODIES)]
    call = str(rng.choice(CALLS))
    try:
        end = python(HEAD + BODIES[what], call, f"{rng.uniform(0, 0.5):.3f}", timeout=_LIMIT)
    except subprocess.TimeoutExpired as late:
        at = re.findall(r'File ".*?([^/"]+)", line (\d+) in', (late.stderr or b"").decode(errors="replace"))
        return what, f"{call}: hangs in {', '.join(':'.join(place) for place in at[:30])}"
    said = end.stderr.strip().splitlines()
    return what, None if end.returncode == 0 else f"{call}: {said[-1][:150] if said else end.returncode}"
