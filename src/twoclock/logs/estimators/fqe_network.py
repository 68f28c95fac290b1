"""Fitted Q-evaluation with a network, cross-fitted, and corrected by the weights of the linear features."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.logs.estimators import DoesNotApply, EstimatorContext, ValueEstimate, estimator
from twoclock.logs.features import vectors
from twoclock.protocols import Key, PyTree
from twoclock.validation import check_process

WIDTH, DEPTH, TARGETS, STEPS, BATCH, RATE = 64, 2, 80, 100, 256, 1e-3
_MOST_ROWS = 500_000


@estimator("fitted Q-evaluation with an Equinox network, corrected")
def fqe_network(context: EstimatorContext) -> ValueEstimate:
    """Regress r + γΣ_aπ(a|s')Q(s', a) on (s, a) with a network, again and again; two networks, one for each half.

    v̂ = mean Q(s₀, π) + Σw(r + γQ(s', π) − Q(s, a)), each half of the episodes with the network of the other. The
    correction removes the first-order error of the networks; the weights w are those of the linear features. Without it
    there would be no interval.
    """
    context.require_matrix()
    try:
        import equinox  # noqa: F401
        import optax  # noqa: F401
    except ImportError:
        raise DoesNotApply("it needs Equinox and Optax; install them with `pip install equinox optax`") from None
    estimand = context.estimand
    log = estimand.log
    if log.actions is None or estimand.start is not None or estimand.visited or log.rows > _MOST_ROWS:
        raise DoesNotApply(f"it is for discrete actions, the starts of the log, and up to {_MOST_ROWS:,} rows")
    batches = list(log)
    both = [np.concatenate([getattr(b, name) for b in batches]) for name in ("state", "next_state")]
    inputs = np.concatenate(both)
    if inputs.ndim == 1 and inputs.dtype.kind in "iuU":  # single whole numbers or text, which a network sees one-hot
        labels, at = np.unique(inputs, return_inverse=True)
        inputs = np.eye(len(labels))[at]
    state, after = np.split(vectors(inputs), 2)
    law = np.concatenate([estimand.policy.acts(b.next_state, (*b.number, 0)).law for b in batches])
    names = ("action", "reward", "terminated", "episode", "first")
    action, reward, ended, episode, first = (np.concatenate([getattr(b, name) for b in batches]) for name in names)
    shift, scale = state.mean(axis=0), np.where(state.std(axis=0) > 0, state.std(axis=0), 1.0)
    state, after = (state - shift) / scale, (after - shift) / scale
    first_law = np.concatenate([estimand.policy.acts(b.state[b.first], (*b.number, 1)).law for b in batches])
    w = np.concatenate([np.asarray(estimand.rows(b)[0] @ context.solution.x) for b in batches])
    delta, start = np.empty(len(reward)), np.empty(int(first.sum()))
    for half in (0, 1):
        mine = episode % 2 == half
        rows = (state[~mine], action[~mine], reward[~mine], after[~mine], law[~mine] * ~ended[~mine, None])
        q = _fit(rows, len(log.actions), estimand.gamma, half)
        ahead = (q(after[mine]) * law[mine]).sum(axis=1) * ~ended[mine]
        delta[mine] = reward[mine] + estimand.gamma * ahead - q(state[mine])[np.arange(mine.sum()), action[mine]]
        begin = mine[first]
        start[begin] = (q(state[first][begin]) * first_law[begin]).sum(axis=1)
    plain, score = float(start.mean()), w * delta
    value = plain + float(score.sum())
    cluster = np.concatenate([estimand.index(b, estimand.clusters) for b in batches])
    by_start = np.bincount(cluster[first], (start - plain) / len(start), minlength=estimand.clusters)
    by_score = np.bincount(cluster, score, minlength=estimand.clusters)
    return ValueEstimate(value, by_start + by_score - by_score.mean(), None, (f"the networks alone say {plain:.5g}",))


def _fit(rows: tuple[np.ndarray, ...], actions: int, gamma: float, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function from states to the values of all actions."""
    import equinox as eqx
    import optax

    check_process()
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state, action, reward, after, law = (jnp.asarray(column) for column in rows)
        key = jax.random.key(seed)
        model = eqx.nn.MLP(state.shape[1], actions, WIDTH, DEPTH, key=key)
        learned, rest = eqx.partition(model, eqx.is_inexact_array)
        adam = optax.adam(RATE)
        # The network's outputs are near 1 in this unit.
        size = jnp.maximum(jnp.abs(reward).max() / max(1 - gamma, 0.01), 1e-6)

        def values(learned: PyTree, x: jax.Array) -> jax.Array:
            return size * jax.vmap(eqx.combine(learned, rest))(x)

        def target_round(carry: PyTree, key: Key) -> tuple[PyTree, None]:
            learned, memory = carry
            goal = reward + gamma * (values(learned, after) * law).sum(axis=1)

            def step(inner: PyTree, key: Key) -> tuple[PyTree, None]:
                learned, memory = inner
                at = jax.random.randint(key, (BATCH,), 0, len(reward))

                def loss(learned: PyTree) -> jax.Array:
                    found = jnp.take_along_axis(values(learned, state[at]), action[at][:, None], axis=1)[:, 0]
                    return jnp.mean(jnp.square((found - goal[at]) / size))

                change, memory = adam.update(jax.grad(loss)(learned), memory, learned)
                return (optax.apply_updates(learned, change), memory), None

            return jax.lax.scan(step, (learned, memory), jax.random.split(key, STEPS))[0], None

        fitted = jax.jit(lambda start: jax.lax.scan(target_round, start, jax.random.split(key, TARGETS))[0][0])
        learned = fitted((learned, adam.init(learned)))

    def q(x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return np.asarray(values(learned, jnp.asarray(x)), float)

    return q
