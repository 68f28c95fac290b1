"""The types that signatures promise are held at run time, in every part: a wrong shape does not broadcast its way."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

import twoclock as tc
from twoclock import prng, tree_math
from twoclock.models.riccati import lyapunov
from twoclock.sampling.alias import alias_table

QUADRATIC = tc.problems.quadratic(dim=2)
WRONG = {
    "methods: a state of another method": lambda: tc.Fast().report(tc.Standard().init(np.ones(2), np.ones(2))),
    "models: matrices of different sizes": lambda: lyapunov(np.eye(2), np.eye(3)),
    "problems: θ and ω of different lengths": lambda: QUADRATIC.F(np.ones(2), np.ones(1), np.ones(2)),
    "problems: a field of the wrong rank": lambda: type(QUADRATIC)(*[np.ones(2)] * 6, np.float64(1.0)),
    "trees: a leaf that is no float": lambda: tree_math.Sum({"a": jnp.ones(2), "b": jnp.arange(2)}, None),
    "sampling: a law of whole numbers": lambda: alias_table(np.array([1, 0])),
    "engine: a seed that is none": lambda: prng.step_stream("3"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_shape_is_refused_where_it_enters(what):
    with pytest.raises((jaxtyping.TypeCheckError, BeartypeCallHintViolation)):
        WRONG[what]()
