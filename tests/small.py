"""Settings that make the larger problems of the catalogue small: the same is traced and compiled, only less of it."""

SMALL = {
    "pursuit": {"size": 2},
    "quadratic": {"dim": 2},
    "quadratic_bilevel": {"dim_x": 2, "dim_y": 2, "samples": 8, "batch": 4},
    "quadratic_minimax": {"dim_x": 2, "dim_y": 2, "samples": 8, "batch": 4},
    "random_entropy_mdp": {"states": 3, "actions": 2},
    "random_policy_evaluation": {"states": 5, "actions": 3, "features": 2},
}
