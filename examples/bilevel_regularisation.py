"""Thirty penalties at once: a logistic regression with a separate regularisation for every feature.

The data are scikit-learn's breast cancer set. The inner problem fits weights on the training part, the outer one fits
the thirty logarithms of the penalties to the validation part; a grid search can afford one penalty for all features.
Single-loop bilevel descent is compared with the best of a grid and with exact implicit differentiation, which solves
the inner problem to the end and inverts its Hessian at every step. Step sizes were found by a few tries on the
validation loss; the sizes of the three parts were chosen after a first look at all of them.

    python examples/bilevel_regularisation.py --out regularisation.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import twoclock as tc
from twoclock import plot

LOW, HIGH = -7.0, 2.0


def parts(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A quarter to train, half to validate, a quarter to test; features scaled by the training part."""
    data = load_breast_cancer()
    order = np.random.default_rng(seed).permutation(len(data.target))
    cut = np.split(order, [len(order) // 4, 3 * len(order) // 4])
    scaler = StandardScaler().fit(data.data[cut[0]])
    signs = 2.0 * data.target - 1
    names = ("train", "valid", "test")
    return {name: (scaler.transform(data.data[i]), signs[i]) for name, i in zip(names, cut, strict=True)}


def fit(y: Any, batch: Any) -> Any:
    features, sign = batch
    return jnp.mean(jnp.logaddexp(0.0, -sign * (features @ y)))


def inner(x: Any, y: Any, batch: Any) -> Any:
    return fit(y, batch) + jnp.sum(jnp.exp(x) * y**2) / 2


def outer(x: Any, y: Any, batch: Any) -> Any:
    return fit(y, batch)


def weights(x: Any, train: Any) -> Any:
    """The inner problem solved to the end, by Newton's method."""

    def step(i: int, y: Any) -> Any:
        return y - jnp.linalg.solve(jax.hessian(inner, 1)(x, y, train), jax.grad(inner, 1)(x, y, train))

    return jax.lax.fori_loop(0, 12, step, jnp.zeros(train[0].shape[1]))


@jax.jit
def hypergradient(x: Any, train: Any, valid: Any) -> tuple[Any, Any]:
    """Implicit differentiation with the whole Hessian."""
    y = weights(x, train)
    v = jnp.linalg.solve(jax.hessian(inner, 1)(x, y, train), jax.grad(outer, 1)(x, y, valid))
    return fit(y, valid), -jax.jacfwd(jax.grad(inner, 1), 0)(x, y, train).T @ v


def main(steps: int, seeds: int, exact_steps: int, out: Path | None) -> dict[str, float]:
    """Fit by each way, print the losses, draw, and return the validation losses."""
    data = parts(seed=0)
    with jax.enable_x64(True):
        train, valid, test = (jax.tree.map(jnp.asarray, data[name]) for name in ("train", "valid", "test"))
        grid = np.linspace(LOW, HIGH, 37)
        solved = jax.jit(jax.vmap(lambda x: weights(jnp.full(30, x), train)))(grid)
        losses = np.asarray(jax.vmap(lambda y: fit(y, valid))(solved))
        best = int(losses.argmin())
        x0 = np.full(30, grid[best])

        x, trace = jnp.asarray(x0), []
        for _ in range(exact_steps):
            loss, slope = hypergradient(x, train, valid)
            trace.append(float(loss))
            x = jnp.clip(x - 20.0 * slope, LOW, HIGH)
        exact = x

    def measure(x: Any, omega: Any) -> dict[str, Any]:
        at, held = jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), (data["train"], data["valid"]))
        return {"validation": fit(weights(x, at), held), "as it stands": fit(omega[0], held)}

    problem = tc.problems.bilevel(
        outer=outer,
        inner=inner,
        sampler=(tc.samplers.Minibatches(data["train"], 32), tc.samplers.Minibatches(data["valid"], 32)),
        x=x0,
        y=np.asarray(solved[best]),
        measure=measure,
    )

    def inside(x: Any) -> Any:
        return jnp.clip(x, LOW, HIGH)

    # Thirty directions of very different sizes: Adam's scaling on the slow level, plain steps on the fast one.
    dressed = {"transform_theta": optax.scale_by_adam(b1=0.0, b2=0.999), "project_theta": inside}
    slow, quick = tc.Power(60.0, shift=2_000.0), tc.Power(20.0, p=0.5, shift=1_000.0)
    methods = {"Fast": tc.Fast(slow, quick, 0.1, **dressed), "SOBA": tc.methods.Standard(slow, quick, **dressed)}
    results = tc.solve(problem, methods, steps, seeds)

    with jax.enable_x64(True):
        points = {"best of a grid": x0, "implicit differentiation": exact}
        points |= {label: r.theta.mean(axis=0) for label, r in results.items()}
        found = {}
        for label, point in points.items():
            y = weights(jnp.asarray(point), train)
            found[label] = float(fit(y, valid))
            right = float(jnp.mean(test[1] * (test[0] @ y) > 0))
            print(f"{label}: validation loss {found[label]:.4f}, test loss {fit(y, test):.4f}, accuracy {right:.3f}")
    if out is not None:
        draw(results, trace, float(losses[best]), exact, out)
        print(f"picture: {out}")
    return found


def draw(results: Any, trace: list[float], grid: float, exact: Any, out: Path) -> None:
    fig, ((left, right),) = plot.figure(1, 2)
    plot.curves(left, results, "validation")
    left.axhline(grid, color="0.3", linestyle="--", linewidth=1, label="best of a grid of 37")
    left.axhline(trace[-1], color="0.3", linestyle=":", linewidth=1, label=f"exact, {len(trace)} steps")
    left.set(ylabel="validation loss, inner problem solved", yscale="linear", ylim=(0.045, 0.1))
    left.legend(frameon=False, fontsize="small")
    order = np.argsort(np.asarray(exact))
    for i, (label, result) in enumerate(results.items()):
        right.plot(result.theta.mean(axis=0)[order], plot.MARKERS[i], color=plot.COLOURS[i], ms=4, label=label)
    right.plot(np.asarray(exact)[order], color="0.3", linestyle=":", label="implicit differentiation")
    right.set(xlabel="features, by their penalty", ylabel="logarithm of the penalty", ylim=(LOW - 1, HIGH + 4))
    right.legend(frameon=False, fontsize="small")
    run = next(iter(results.values())).spec
    plot.caption(fig, f"breast cancer data, batches of 32, mean over {len(run['seeds'])} seeds, {run['steps']:,} steps")
    out.write_bytes(plot.render(fig)["png"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--exact-steps", type=int, default=500)
    parser.add_argument("--out", type=Path, default=None)
    main(**vars(parser.parse_args()))
