"""Find the wrong labels: every training item has a weight, and a small clean set determines the weights.

The data are scikit-learn's digits. A third of the training labels are replaced by random wrong ones. The inner problem
fits a softmax regression to the weighted training items, the outer one fits the thousand weights to a hundred clean
items. Corrupted items lose their weight, and the fit recovers about half of what the corruption cost.

    python examples/bilevel_data_cleaning.py --out cleaning.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import twoclock as tc
from twoclock import plot

RIDGE = 2e-3


def corrupted_digits(items: int, clean: int, share: float, seed: int) -> dict[str, Any]:
    """Training items with some labels replaced, clean items to compare with, and the rest to test."""
    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    features = np.concatenate([images[order] / 16, np.ones((len(order), 1))], axis=1)
    labels = labels[order].astype(np.int32)
    train, valid, test = (slice(0, items), slice(items, items + clean), slice(items + clean, None))
    bad = rng.random(items) < share
    given = labels[train].copy()
    given[bad] = (given[bad] + rng.integers(1, 10, bad.sum())) % 10
    return {
        "train": (np.arange(items, dtype=np.int32), features[train], given),
        "truth": (features[train], labels[train]),
        "valid": (features[valid], labels[valid]),
        "test": (features[test], labels[test]),
        "bad": bad,
    }


def loss_of_each(y: Any, features: Any, labels: Any) -> Any:
    logits = features @ y
    picked = jnp.sum(logits * jax.nn.one_hot(labels, 10, dtype=logits.dtype), axis=1)
    return jax.nn.logsumexp(logits, axis=1) - picked


def inner(x: Any, y: Any, batch: Any) -> Any:
    item, features, labels = batch
    return jnp.mean(jax.nn.sigmoid(x[item]) * loss_of_each(y, features, labels)) + RIDGE / 2 * jnp.sum(y**2)


def outer(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(loss_of_each(y, *batch))


def accuracy(y: Any, data: Any) -> Any:
    return jnp.mean((jnp.argmax(data[0] @ y, axis=1) == data[1]).astype(float))


def plain_fit(data: Any, weight: Any) -> Any:
    """The same regression with given weights, by accelerated gradient descent on all items."""

    def loss(y: Any) -> Any:
        return jnp.mean(weight * loss_of_each(y, *data)) + RIDGE / 2 * jnp.sum(y**2)

    def step(i: int, pair: Any) -> Any:
        y, ahead = pair
        new = ahead - 0.2 * jax.grad(loss)(ahead)
        return new, new + 0.9 * (new - y)

    zero = jnp.zeros((data[0].shape[1], 10))
    return jax.jit(lambda: jax.lax.fori_loop(0, 1_000, step, (zero, zero))[0])()


def main(steps: int, seeds: int, items: int, out: Path | None) -> dict[str, float]:
    """Clean the data, print the weights and the test error, draw, and return the numbers."""
    data = corrupted_digits(items, clean=100, share=1 / 3, seed=0)
    bad = data["bad"]

    def measure(x: Any, omega: Any) -> dict[str, Any]:
        weight = jax.nn.sigmoid(x)
        return {
            "test error": 1 - accuracy(omega[0], data["test"]),
            "weight of corrupted": jnp.mean(weight[bad]),
            "weight of sound": jnp.mean(weight[~bad]),
        }

    problem = tc.problems.bilevel(
        outer=outer,
        inner=inner,
        sampler=(tc.samplers.Minibatches(data["train"], 64), tc.samplers.Minibatches(data["valid"], 50)),
        x=np.zeros(items),
        y=np.zeros((65, 10)),
        v_scale=1.0,
        measure=measure,
    )
    slow, quick = tc.Power(3e3, p=0.5, shift=1_000.0), tc.Power(5.0, p=0.5, shift=1_000.0)
    result = tc.solve(problem, tc.Fast(slow, quick, 0.1), steps, seeds)

    weight = 1 / (1 + np.exp(-result.theta))
    ones = np.ones(items)
    with jax.enable_x64(True):
        ways = {
            "as given": plain_fit(data["train"][1:], ones),
            "cleaned": plain_fit(data["train"][1:], weight.mean(axis=0)),
            "sound items alone": plain_fit(data["train"][1:], np.where(bad, 0.0, 1.0)),
            "the clean 100 alone": plain_fit(data["valid"], np.ones(100)),
        }
        found = {f"test accuracy, {label}": float(accuracy(y, data["test"])) for label, y in ways.items()}
    ranked = np.argsort(np.argsort(weight.mean(axis=0)))
    found["corrupted below sound"] = float((ranked[~bad].mean() - ranked[bad].mean()) / items + 0.5)
    found["mean weight of corrupted"] = float(weight[:, bad].mean())
    found["mean weight of sound"] = float(weight[:, ~bad].mean())
    for label, value in found.items():
        print(f"{label}: {value:.3f}")
    if out is not None:
        draw(result, weight.mean(axis=0), bad, found, out)
        print(f"picture: {out}")
    return found


def draw(result: tc.Result, weight: np.ndarray, bad: np.ndarray, found: dict[str, float], out: Path) -> None:
    fig, ((left, right),) = plot.figure(1, 2)
    for i, (name, label) in enumerate(
        (("weight of sound", "sound labels"), ("weight of corrupted", "corrupted labels"))
    ):
        table = result.summary(name)
        left.plot(table["step"], table["mean"], color=plot.COLOURS[i], label=label, marker=plot.MARKERS[i], ms=3.5)
    left.set(xlabel="steps k", ylabel="mean weight", ylim=(0, 1))
    left.legend(frameon=False, fontsize="small")
    bins = np.linspace(0, 1, 31)
    for i, (chosen, label) in enumerate(((~bad, "sound"), (bad, "corrupted"))):
        right.hist(weight[chosen], bins, color=plot.COLOURS[i], alpha=0.6, label=f"{chosen.sum()} {label}")
    right.set(xlabel="weight at the end", ylabel="items")
    right.legend(frameon=False, fontsize="small")
    accuracies = [f"{k.split(', ')[1]} {v:.3f}" for k, v in found.items() if k.startswith("test")]
    plot.caption(fig, "digits, test accuracy: " + ", ".join(accuracies))
    out.write_bytes(plot.render(fig)["png"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--items", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=None)
    main(**vars(parser.parse_args()))
