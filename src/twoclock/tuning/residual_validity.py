"""Where the residual says nothing, and where it says less."""

from __future__ import annotations

import jax

from twoclock import prng
from twoclock.param_paths import paths
from twoclock.protocols import InputError, Method, Problem, PyTree


def check_meaning(problem: Problem, method: Method) -> None:
    """Complain where a method cannot be judged by the residual on this problem."""
    check_free([path for path, value in paths(method).items() if value is not None])
    check_slopes(problem)


def check_free(fields: list[str]) -> None:
    """A method that keeps θ or ω in a set may end where E F ≠ 0, and be right.

    Args:
        fields: the paths of what is set in a method.
    """
    for path in fields:
        if path.rsplit(".", 1)[-1].startswith("project_"):
            raise InputError(
                f"the residual says nothing here: `{path}` keeps a variable in a set, and on its boundary a solution "
                "need not have E F = 0; use a metric of the problem"
            )


def check_slopes(problem: Problem) -> None:
    """The residual needs an ω that solves E G = 0, and its curvature derivatives of F and G."""
    if problem.omega_is_trace:
        raise InputError(
            "the residual says nothing here: ω is a trace, which solves no equation; use a metric of the problem, or "
            "take the problem that `with_trace` was given"
        )

    def slopes(problem: Problem) -> tuple[PyTree, PyTree]:
        theta, omega, x = _sample(problem)
        return jax.jvp(lambda t, w: (problem.F(t, w, x), problem.G(t, w, x)), (theta, omega), (theta, omega))

    try:
        jax.eval_shape(slopes, problem)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")[:80]
        raise InputError(
            f"the residual needs derivatives of F and G that JAX can take ({reason}); use a metric of the problem"
        ) from None


def follows_theta(problem: Problem) -> bool:
    """Whether the samples depend on θ, as on-policy ones do: the curvature leaves that out."""
    key = prng.start_key(0)
    theta, _, env = problem.init(key)
    program = jax.make_jaxpr(lambda theta: problem.draw(problem.noise(key), theta, env))(theta).jaxpr
    used = {id(v) for equation in program.eqns for v in equation.invars} | {id(v) for v in program.outvars}
    return any(id(v) in used for v in program.invars)


def _sample(problem: Problem) -> tuple[PyTree, PyTree, PyTree]:
    key = prng.start_key(0)
    theta, omega, env = problem.init(key)
    return theta, omega, problem.draw(problem.noise(key), theta, env)[0]
