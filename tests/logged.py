"""Logs of finite MDPs, drawn in bulk, and what their policies are truly worth."""

import numpy as np

import twoclock as tc


def random_mdp(states=6, actions=2, gamma=0.9, seed=0, end=0.0):
    """P[s, a, s'] with a last state that ends the episode where ``end`` is above 0, and rewards in [0, 1]."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
    r = rng.random((states, actions))
    if end:
        P *= 1 - end
        P = np.concatenate([P, np.full((states, actions, 1), end)], axis=2)
    pi, b = rng.dirichlet(np.ones(actions), size=states), np.full((states, actions), 1 / actions)
    return Finite(P, r, gamma, pi, b, np.full(states, 1 / states))


class Finite:
    """States 0 … n−1; a next state n is the end."""

    def __init__(self, P, r, gamma, pi, b, start):
        self.P, self.r, self.gamma, self.pi, self.b, self.start = P, r, gamma, pi, b, start
        self.states = P.shape[0]

    @classmethod
    def of(cls, mdp, start, pi, b):
        """From the library's own, whose ends are transitions of discount 0."""
        goes_on = np.broadcast_to(mdp.gamma > 0, mdp.P.shape)
        P = np.concatenate([mdp.P * goes_on, (mdp.P * ~goes_on).sum(axis=2, keepdims=True)], axis=2)
        r = mdp.r if mdp.r.ndim == 2 else (mdp.P * mdp.r).sum(axis=2)
        return cls(P, r, float(mdp.gamma.max()), pi, b, start)

    def values(self, pi=None):
        pi = self.pi if pi is None else pi
        chain = np.einsum("sa,sat->st", pi, self.P[:, :, : self.states])
        return np.linalg.solve(np.eye(self.states) - self.gamma * chain, (pi * self.r).sum(axis=1))

    def worth(self, pi=None):
        return float(self.start @ self.values(pi))

    def draw(self, episodes, steps, seed=0, noise=0.5):
        """Columns of a log, each episode at most ``steps`` steps long; rewards have noise."""
        rng = np.random.default_rng(seed)
        most = int((self.P > 0).sum(axis=2).max())
        reach = np.argsort(-self.P, axis=2, kind="stable")[:, :, :most]  # the states that can follow, likely ones first
        cumulative = np.take_along_axis(self.P, reach, axis=2).cumsum(axis=2)
        s = (self.start.cumsum() < rng.random(episodes)[:, None]).sum(axis=1).clip(max=self.states - 1)
        alive = np.arange(episodes)
        rows = []
        for t in range(steps):
            a = (self.b[s].cumsum(axis=1) < rng.random(len(s))[:, None]).sum(axis=1).clip(max=self.b.shape[1] - 1)
            chosen = (cumulative[s, a] < rng.random(len(s))[:, None]).sum(axis=1).clip(max=most - 1)
            after = reach[s, a, chosen]
            done = after == self.states
            earned = self.r[s, a] + noise * rng.standard_normal(len(s))
            rows.append((alive, np.full(len(s), t), s, a, earned, np.where(done, s, after), done, self.b[s, a]))
            alive, s = alive[~done], after[~done]
            if not len(s):
                break
        names = ("episode", "step", "state", "action", "reward", "next_state", "terminated", "propensity")
        columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        return {name: column[order] for name, column in zip(names, columns, strict=True)}


COLUMNS = {"next_state": "next_state", "episode": "episode", "step": "step", "propensity": "propensity"}


def read(columns, **options):
    return tc.logs.read(columns, **{**COLUMNS, **options})


def soft(mdp, share):
    """A policy that does the best with probability 1 − share and anything else otherwise."""
    best = mdp.soft_policy(0)
    return (1 - share) * best + share / mdp.actions


def of_gymnasium(name, gamma, target, behaviour, starts=None):
    """An environment with a table; target and behaviour choose at random with these shares.

    Episodes begin where the environment says, or in any of the first ``starts`` states.
    """
    mdp, start = tc.models.from_gymnasium(name, gamma=gamma)
    if starts:
        start = (np.arange(mdp.states) < starts) / starts
    return Finite.of(mdp, start, soft(mdp, target), soft(mdp, behaviour))


def boyan():
    """Boyan's chain from its top, with the fair coin as two actions, and a target that hurries."""
    problem = tc.problems.boyan()
    n = 13
    P = np.zeros((n, 2, n + 1))
    for s in range(n):
        for a in (0, 1):
            to = s - 1 - a if s > 1 else s - 1
            P[s, a, n if to <= 0 else to] = 1.0
    r = np.where(np.arange(n) == 1, -2.0, -3.0)[:, None] * np.ones(2)
    pi, b = np.tile([0.3, 0.7], (n, 1)), np.full((n, 2), 0.5)
    found = Finite(P, r, 1.0, pi, b, np.eye(n)[12])
    assert np.allclose(found.values(b)[1:], problem.truth.values[1:])
    return found
