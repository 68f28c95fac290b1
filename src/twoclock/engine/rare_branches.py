"""Branches that are taken only at a few steps, known in advance: a compiled loop does not contain them.

A method that does something from time to time, such as ``Candidates``, may do it in a ``lax.cond`` whose predicate
depends on the step number alone. Such a branch may be most of a program and of the time that a C compiler needs for it.
So the loop is made of the usual branches, and stops before each step that takes another branch; XLA takes that step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from twoclock.codegen.build import with_own_constants
from twoclock.engine import numpy_evaluator
from twoclock.protocols import PyTree

# Steps that are examined at once; from the first of them comes how often each branch is taken. Below the given share a
# branch is rare.
_TOGETHER, _RARE = 1 << 14, 1 / 64
# If there are at most this many rare steps among those, NumPy takes them.
_FEW = 4


class RareSteps:
    """Which steps take a branch that others do not, and a step without such branches.

    Args:
        step: a function of pytrees.
        args: shapes of them.
        number: which of them is the number k of the step.
        checked: which leaves of them are finite wherever the step matters, by this check of the step before. Where the
            usual branches leave one unchanged, it is not checked again.
        check: the name of that check.
    """

    def __init__(
        self,
        step: Callable[..., PyTree],
        args: Sequence[PyTree],
        number: int,
        checked: range = range(0),
        check: str = "state_leaf_is_finite",
    ) -> None:
        self._checked, self._check = checked, check
        program, self._shapes = jax.make_jaxpr(lambda *given: step(*given), return_shape=True)(*args)
        self.program = with_own_constants(program)
        jaxpr = self.program.jaxpr
        k = jaxpr.invars[len(jax.tree.leaves(list(args[:number])))]
        of_k = _depend_on(k, jaxpr)
        conds = [equation for equation in jaxpr.eqns if equation.primitive.name == "cond"]
        self._conds = [e for e in conds if isinstance(e.invars[0], Var) and e.invars[0] in of_k]
        self._usual: dict[int, int] = {}  # the branch that nearly all steps take, by the position of the cond
        if not self._conds:
            return
        indices = [equation.invars[0] for equation in self._conds]
        needed, path = set(indices), list[JaxprEqn]()
        for equation in reversed(jaxpr.eqns):
            if needed & set(equation.outvars):
                needed |= {variable for variable in equation.invars if isinstance(variable, Var)}
                path.insert(0, equation)

        constants = dict(zip(jaxpr.constvars, self.program.consts, strict=True))

        def branches(k_now: jax.Array) -> list[jax.Array]:
            values = {k: k_now, **constants}
            for equation in path:
                _evaluate(equation, values)
            return [_read(variable, values) for variable in indices]

        def branches_by_numpy(steps: np.ndarray) -> list[np.ndarray]:
            values = {k: steps, **{v: numpy_evaluator.shared(value) for v, value in constants.items()}}
            numpy_evaluator.add_results(path, values)
            return [np.broadcast_to(values[variable], steps.shape) for variable in indices]

        known = numpy_evaluator.are_known(path)
        self._branches: Callable[..., Sequence[np.ndarray | jax.Array]]
        self._branches = branches_by_numpy if known else jax.jit(jax.vmap(branches))
        for place, taken in enumerate(self._taken(0)):
            usual = int(np.bincount(taken).argmax())
            if 0 < np.mean(taken != usual) <= _RARE:
                self._usual[place] = usual

    def __bool__(self) -> bool:
        return bool(self._usual)

    def by_numpy(self) -> ClosedJaxpr | None:
        """The whole step as a program that NumPy can evaluate, where that is quick: for few rare steps, or none."""
        quick = len(self.between(0, _TOGETHER)) <= _FEW and numpy_evaluator.are_known(self.program.jaxpr.eqns)
        return self.program if quick else None

    def between(self, lo: int, hi: int) -> list[int]:
        """The rare steps among lo … hi−1."""
        found: list[int] = []
        for first in range(lo - lo % _TOGETHER, hi, _TOGETHER) if self._usual else ():
            taken = self._taken(first)
            rare = np.any([taken[number] != usual for number, usual in self._usual.items()], axis=0)
            found += [first + int(i) for i in np.flatnonzero(rare) if lo <= first + i < hi]
        return found

    def usual(self, *args: PyTree) -> PyTree:
        """The step with its usual branches alone; its arguments have the shapes of the trace."""
        jaxpr = self.program.jaxpr
        given = *self.program.consts, *jax.tree.leaves(args)
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), given, strict=True))
        branches = {id(equation): self._usual.get(place) for place, equation in enumerate(self._conds)}
        finite = [values[jaxpr.invars[i]] for i in self._checked]
        for equation in jaxpr.eqns:
            if equation.params.get("name") == self._check:
                (leaf,) = (_read(variable, values) for variable in equation.invars)
                if any(leaf is one for one in finite):
                    values[equation.outvars[0]] = jnp.asarray(True)
                    continue
            _evaluate(equation, values, branches.get(id(equation)))
        out = [_read(variable, values) for variable in jaxpr.outvars]
        return jax.tree.unflatten(jax.tree.structure(self._shapes), out)

    def _taken(self, first: int) -> list[np.ndarray]:
        """Return the branch that each cond takes, at one batch of steps from the first on."""
        steps = first + np.arange(_TOGETHER, dtype=np.int32)
        return [np.asarray(taken) for taken in self._branches(steps)]


def spans(lo: int, hi: int, rare: Sequence[int], ends: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
    """Cut the steps lo … hi−1 before and after each rare one, and after each of ``ends``: (first, last)."""
    cuts = {lo, hi, *rare, *(k + 1 for k in (*rare, *ends))}
    return pairwise(sorted(cut for cut in cuts if lo <= cut <= hi))


def _depend_on(k: Var, jaxpr: Jaxpr) -> set[object]:
    """The variables that depend on k and on constants alone."""
    known: set[object] = {k, *jaxpr.constvars}
    for equation in jaxpr.eqns:
        inputs = [variable for variable in equation.invars if isinstance(variable, Var)]
        if not equation.effects and inputs and all(variable in known for variable in inputs):
            known.update(equation.outvars)
    return known


def _read(variable: Var | Literal, values: dict[Var, jax.Array]) -> jax.Array:
    return variable.val if isinstance(variable, Literal) else values[variable]


def _evaluate(equation: JaxprEqn, values: dict[Var, jax.Array], branch: int | None = None) -> None:
    """Add the results of an equation to the values; for a cond those of the given branch, if there is one."""
    given = [_read(variable, values) for variable in equation.invars]
    if branch is not None:
        taken: ClosedJaxpr = equation.params["branches"][branch]
        out = jaxpr_as_fun(taken)(*given[1:])
    elif equation.primitive.name == "select_n" and all(case is given[1] for case in given[1:]):
        out = [given[1]]  # what a branch left unchanged
    else:
        parameters = equation.primitive.get_bind_params(equation.params)
        out = equation.primitive.bind(*given, **parameters)
        out = out if equation.primitive.multiple_results else [out]
    values.update(zip(equation.outvars, out, strict=True))
