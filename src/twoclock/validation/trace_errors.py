"""A user's function, traced: what it does wrong is told in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from twoclock.protocols import InputError


@contextmanager
def in_words(name: str) -> Iterator[None]:
    """What a user's function called ``name`` does wrong while it is traced, in one line."""
    try:
        yield
    except InputError:
        raise
    except jax.errors.TracerBoolConversionError as error:
        raise InputError(
            f"`{name}` must not branch on a value that is only known in the run; write `jnp.where(condition, a, b)`, "
            "or `jax.lax.cond`"
        ) from error
    except jax.errors.TracerArrayConversionError as error:
        raise InputError(
            f"`{name}` must compute with jax.numpy, it makes a NumPy array of a value that is only known in the run; "
            "write `jnp.` for `np.`"
        ) from error
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError) as error:
        raise InputError(
            f"`{name}` must not ask for the number in an array that is only known in the run (by float, int or range); "
            "keep it an array"
        ) from error
    except Exception as error:
        why = " ".join(str(error).split("\n")[0].split())
        raise InputError(f"`{name}` fails when it is traced, with {type(error).__name__}: {why:.200}") from error


def shape_from(name: str, f: Callable[..., Any], *args: Any) -> Any:
    """The shapes that a user's function gives for these arguments."""
    with in_words(name):
        return jax.eval_shape(f, *args)
