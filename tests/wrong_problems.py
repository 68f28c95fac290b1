"""Wrong arguments of problems, models and samplers, as data; see ``wrong_inputs``."""

import jax.numpy as jnp
import numpy as np

from twoclock import models, problems, sampling
from wrong_inputs import DEEP, INF, KEY, MDP, NAN, NO_COUNTS, NO_NUMBERS, custom

P, PI = np.full((2, 2, 2), 0.5), np.full((2, 2), 0.5)
LQR = models.Lqr([[0.9]], [[1.0]], [[1.0]], [[1.0]])


def loss(x, y, batch):
    return x**2 + y**2


BILEVEL = {"outer": loss, "inner": loss, "sampler": lambda key: (None, None), "x": 0.0, "y": 0.0}
EVALUATE = {"mdp": MDP, "features": np.eye(2), "target": PI}
NETWORK = {"mdp": MDP, "value": lambda params, s: params[s], "params": np.zeros(2), "target": PI}

CALLS = [
    (problems.quadratic, {}, {
        "dim": ("`dim` must", NO_COUNTS), "mu_h": ("`mu_h` must", [*NO_NUMBERS, 0.0, 2.0]),
        "mu_g": ("`mu_g` must", [*NO_NUMBERS, 0.0, 2.0]), "top": ("`top` must", ["1", INF, 0.0]),
        "rotation": ("`rotation` must", ["1", NAN]), "coupling": ("`coupling` must", ["1", NAN]),
        "sigma": ("`sigma` must", ["1", -1.0, [0.1]]), "seed": ("`seed` must", [-1, 1.5, "0"]),
    }),
    (problems.rates, {}, {
        "h": (r"`rates\(h=…\)` must", ["convex", None, 1]), "coupling": ("coupling", ["rough", None]),
        "dim": (r"`rates\(dim=…\)` must", NO_COUNTS), "noise": ("noise", ["1", -1.0]), "start": ("start", ["1", NAN]),
        "correlation": ("correlation", ["1", 2.0, NAN]),
    }),
    (problems.quadratic_bilevel, {}, {
        "dim_x": ("`dim_x` must", NO_COUNTS), "batch": ("`batch` must", [0, 65, "8"]),
        "condition": ("`condition` must", [0.5, "10", NAN]), "v_scale": ("`v_scale` must", ["1", 0.0]),
    }),
    (problems.quadratic_minimax, {}, {"samples": ("`samples` must", NO_COUNTS),
                                      "noise": ("`noise` must", ["1", -1.0])}),
    (problems.bilevel, BILEVEL, {
        "outer": ("`outer` must", [2.0, None, lambda x, y: x, lambda x, y, b: jnp.ones(2) * x, lambda x, y, b: None]),
        "inner": ("`inner` must", [2.0, lambda y: y, lambda x, y, b: (x, y)]), "x": ("`x` must", [None, "0", NAN]),
        "y": ("`y` must", ["zero", None, INF]), "sampler": ("`sampler` must", [5, None, lambda: None]),
        "v_scale": ("`v_scale` must", ["1", 0.0, -1.0]), "measure": ("`measure` must", [3, lambda x: {}]),
    }),
    (problems.composite, {"outer": lambda y, b: y**2, "inner": lambda x, b: x, "sampler": lambda key: (None, None),
                          "x": 0.0}, {
        "outer": ("`outer` must", [1.0, lambda y: y]), "inner": ("`inner` must", [1.0, lambda x: x]),
        "sampler": ("`sampler` must", [5]), "x": ("`x` must", [None, "0"]),
    }),
    (problems.minimax, {"loss": lambda x, y, b: x**2 - y**2, "sampler": lambda key: None, "x": 0.0, "y": 0.0}, {
        "loss": ("`loss` must", [1.0, lambda x: x, lambda x, y, b: jnp.ones(2)]), "sampler": ("`sampler` must", [5]),
        "x": ("`x` must", [None]), "y": ("`y` must", ["0"]),
    }),
    (problems.policy_evaluation, EVALUATE, {
        "mdp": ("`mdp` must be a `tc.models.Mdp", [3, None, P]), "target": ("`target`", ["uniform", np.eye(3), -PI]),
        "features": ("`features` must", [np.zeros((2, 3)), np.eye(3), "eye", None, [NAN, 1.0]]),
        "behaviour": ("`behaviour`", ["uniform", np.eye(3), [[1.0, 0.0], [1.0, 0.0]]]),
        "operator": ("`operator` must", ["sarsa", None, 1]), "sampling": ("`sampling` must", ["batch", None]),
        "ridge": ("`ridge`", [1.0, "1"]), "factor": ("`factor` must", ["2", 0.0, NAN]),
        "weights": ("`weights` must", [[1.0], [-1.0, 2.0], "flat"]), "theta0": ("`theta0` must", [[1.0], "zero"]),
    }),
    (problems.nonlinear_policy_evaluation, NETWORK, {
        "mdp": ("`mdp` must", [3]), "value": ("`value` must", [3, lambda params: 0.0, lambda p, s: p]),
        "params": ("`params` must", [None, "zero"]), "operator": ("`operator` must", ["etd", 1]),
        "states": ("`states` must", [np.zeros(3)]), "factor": ("`factor` must", ["2"]),
    }),
    (problems.value_operators, {"value": lambda params, s: 0.0}, {
        "value": ("`value` must", [3, lambda params: 0.0]), "operator": ("`operator` must", ["etd", None]),
    }),
    (problems.random_policy_evaluation, {"key": KEY}, {
        "spread": ("`spread` must", ["1", 0.5, NAN]), "reward_noise": ("`reward_noise` must", ["1", -1.0]),
        "nu": ("`nu` must", ["3", 2.0, NAN]),
        "key": ("`key` must", [0, None, "0"]), "states": ("`states` must", [2.5, 0, "3"]),
        "actions": ("`actions` must", [0, 2.5]), "features": ("`features` must", [51, 0]),
        "gamma": ("`gamma` must", ["0.9", 1.5, -0.1]), "operator": ("`operator` must", ["x"]),
    }),
    (problems.boyan, {}, {"operator": ("`operator` must", ["x", 3]), "sampling": ("`sampling` must", ["x"]),
                          "ridge": ("`ridge`", [1.0])}),
    (problems.entropy_mdp, {"mdp": MDP}, {
        "mdp": ("`mdp` must", [3, None]), "temp": ("`temp` must", ["0.1", -1.0, NAN]),
        "start": ("`start` must", ["x", 5, [1.0]]), "sampling": ("`sampling` must", ["x", None]),
        "features": ("`features` must", [np.zeros((2, 1)), np.eye(3)]), "theta0": ("`theta0` must", [[1.0], "x"]),
    }),
    (problems.frozen_lake, {}, {"size": ("`size` must", [5, "4"]), "gamma": ("`gamma` must", ["0.9", 1.5])}),
    (problems.random_entropy_mdp, {"key": KEY}, {"actions": ("`actions` must", [0, 2.5]), "key": ("`key` must", [3])}),
    (problems.mean_field, {"model": models.LinearQuadraticField()}, {
        "model": ("`model` must", [3, None, MDP, models.LinearQuadraticField(c2=4.0)]),
        "slow": ("`slow` must", ["both", None, 1]),
    }),
    (models.LinearQuadraticField, {"c3": 0.0}, {
        "c1": ("c1", [0.0, -1.0, "x", NAN]), "c2": ("c2=….` must", ["x", INF]), "sigma": ("sigma=….` must", [-1.0]),
        "dt": ("dt=….` must", [0.0, None]), "explore": ("explore=….` must", [0.0]), "spread": ("spread=….` must", [0]),
    }),
    (problems.lqr_actor_critic, {"lqr": LQR}, {
        "lqr": ("`lqr` must", [3, None, MDP]), "sigma": ("`sigma` must", ["1", -1.0, NAN]),
        "K0": ("`K0`", ["zero", [[1.0, 2.0]], [[9.0]]]), "kappa": ("`kappa` must", ["2", 0.0]),
        "guard": ("`guard` must", [3, "yes"]),
    }),
    (problems.Guard, {}, {"limit": ("limit", ["8", 0.0]), "reach": ("reach", ["1", -1.0]), "log": ("log", [0, "x"])}),
    (problems.exact, {}, {"problem": ("`problem`", [3, None, problems.custom, custom()])}),
    (models.Mdp, {"P": P, "r": np.zeros((2, 2)), "gamma": 0.9}, {
        "P": ("`P", [[[1.0], [1.0, 0.0]], "P", None, np.ones((2, 2)), -P, P / 2, P * NAN]),
        "r": ("`r` must", [np.zeros(3), "r", None, np.full((2, 2), INF)]),
        "gamma": ("`gamma` must", ["0.9", None, 1.5, -0.1, NAN, np.zeros(3)]),
        "successors": ("`successors` must", [DEEP, [[0], [0, 1]], np.zeros((2, 2))]),
    }),
    (problems.access_control, {}, {"servers": ("`servers`", [2**31, 0])}),
    (problems.river_swim, {}, {"states": ("`states`", [2**31, 1])}),
    (problems.beach_bar, {}, {"places": ("`places`", [2**31, 2])}),
    (models.AverageReward, {"soft": models.Mdp(P, np.zeros((2, 2)), 0.0).average_reward().soft}, {
        "soft": ("`soft` must", [DEEP, None, P]),
    }),
    (models.EmpiricalMdp, {"states": 2, "actions": 2}, {
        "states": ("states=….` must", [2.0, 0, "2"]), "gamma": ("gamma=….` must", ["0.9", 1.0]),
        "temp": ("temp=….` must", ["hot", -1.0]),
    }),
    (models.Lqr, {"A": [[0.9]], "B": [[1.0]], "Q": [[1.0]], "R": [[1.0]]}, {
        "A": ("`A`|A, B|A, Q", [[["1"]], None, [0.9], [[1.0, 2.0]], [[NAN]]]), "B": ("`B`|A, B", ["B", [[1.0], [2.0]]]),
        "Q": ("`Q`", [[[-1.0]], "Q", np.eye(2)]), "R": ("`R`", [[[0.0]], [[-1.0]], None]),
        "noise": ("`noise`", ["x", [[-1.0]]]),
    }),
    (models.CertaintyEquivalence, {"Q": [[1.0]], "R": [[1.0]]}, {
        "Q": ("Q=….`", ["Q", [[1.0, 2.0]]]), "sigma": ("sigma=….` must", ["1", -1.0]),
        "ridge": ("ridge=….` must", [0.0, "x"]),
    }),
    (models.from_gymnasium, {}, {"env": ("`env` must", [object(), 3, "NoLake-v9", None])}),
    (sampling.Minibatches, {"data": np.arange(4), "size": 2}, {
        "size": ("`size` must", [0, 5, 2.0, "2", None]),
        "data": ("`data` must", [[], None, 3, [np.zeros(2), np.zeros(3)]]),
    }),
]  # fmt: skip
