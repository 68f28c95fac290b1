"""An agent of a user's own, in plain NumPy, and environments that do what environments do, right and wrong."""

import json
import os
import time

import gymnasium as gym
import numpy as np
import pandas as pd

import twoclock as tc
from twoclock import storage


class Averager:
    """Explores with N(0, σ²) and learns the mean state and reward that come of it."""

    def __init__(self, sigma=1.0, rate=0.1, seed=0):
        self.settings = {"sigma": sigma, "rate": rate, "seed": seed}
        self.rng = np.random.default_rng([77, seed])
        self.mean, self.steps, self.diverged = np.zeros(2), 0, False

    settings: dict
    steps: int
    diverged: bool

    def act(self, x):
        return self.settings["sigma"] * self.rng.standard_normal(1)

    def observe(self, x, u, x_next, reward=None, terminated=False, truncated=False):
        self.mean = self.mean + self.settings["rate"] * (np.asarray([x_next[0], reward or 0.0]) - self.mean)
        self.steps += 1

    @property
    def history(self):
        return pd.DataFrame({"step": [self.steps], "error": [float(np.sum(self.mean**2))]})

    def result(self):
        return tc.Result(
            self.mean[None],
            np.zeros((1, 0)),
            self.history.assign(seed=0),
            np.asarray([False]),
            np.asarray([self.steps]),
            {},
        )

    def save(self, path, **also):
        about = {"rng": self.rng.bit_generator.state, "steps": self.steps}
        return storage.save(path, {"own": json.dumps(about)}, {"history": self.history}, {"mean": self.mean, **also})

    def restore(self, path):
        spec, _, trees = storage.load(path)
        about = json.loads(spec["own"])
        self.rng.bit_generator.state, self.steps, self.mean = about["rng"], about["steps"], trees["mean"]


# runtime checks look at the class
Averager.settings = Averager.steps = Averager.diverged = None


def plant(x, u, rng):
    return 0.5 * x + u + rng.normal(size=1), float(-(x[0] ** 2))


class Walk(gym.Env):
    """A noisy walk that ends where |x| > 3, or after 25 steps; ``trouble`` at its step ``at`` of the run."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, trouble="", at=60, pause=0.0):
        self.trouble, self.at, self.pause, self.count = trouble, at, pause, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=1).astype(np.float32), 0
        return self.x, {}

    def step(self, u):
        assert self.action_space.contains(u), u
        time.sleep(self.pause)
        self.t, self.count = self.t + 1, self.count + 1
        self.x = (self.x + u + 0.1 * self.np_random.normal(size=1)).astype(np.float32)
        if self.trouble and self.count == self.at and "MENDED" not in os.environ:
            if self.trouble == "raises":
                raise OSError("the cable is loose")
            if self.trouble == "hangs":
                time.sleep(3600)
            if self.trouble == "dies":
                os._exit(7)
            x = {"nan": self.x * np.nan, "shape": np.zeros(2)}.get(self.trouble, self.x)
            return x, "much" if self.trouble == "reward" else 0.0, False, False, {}
        return self.x, float(-abs(self.x[0])), bool(abs(self.x[0]) > 3), self.t >= 25, {}


def walk():
    return Walk()


def slow():
    return Walk(pause=2e-3)


def hangs():
    return Walk("hangs")


def dies():
    return Walk("dies")
