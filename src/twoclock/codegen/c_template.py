"""The text around a lane's step: which lanes a group holds, what they load before the steps and store after them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

import jax
import numpy as np

from twoclock.codegen.ir import STORED_TYPES
from twoclock.protocols import PyTree


@dataclass(frozen=True)
class Target:
    """What the text is for.

    Args:
        width: lanes side by side; on a GPU one.
        mixed: whether lanes side by side may belong to different methods.
        cuda: whether it is for a GPU.
    """

    width: int = 1
    mixed: bool = False
    cuda: bool = False


# A lane's random stream: two words.
STREAM = jax.ShapeDtypeStruct((2,), np.uint32)


@dataclass(frozen=True)
class UncheckedStep:
    """Leaves of a carry, by number, that tell whether a lane holds when its step does not ask.

    Args:
        watched: those that must be finite.
        held: those that must be within the bound.
        alive: the truth value that says whether the lane has diverged already.
        stays: whether one that has stays as it is, in all of its leaves.
        symmetric: whether matrices that a step keeps symmetric are so.
    """

    watched: tuple[int, ...]
    held: tuple[int, ...]
    alive: int
    stays: bool
    symmetric: bool = True


@dataclass(frozen=True)
class Example:
    """What one lane sees, as shapes and types; the trees of ``jax.ShapeDtypeStruct`` or arrays like them.

    Args:
        source: what makes a step's sample: the lane's random stream, or the sample itself, handed over step by step.
        per_seed: whether each seed has a problem of its own.
        bounded: whether there is a bound on the iterates.
        trust: on what the lane's step is trusted; None if it takes care of itself.
        only_read: how many leaves of the carry, the first ones, are read alone; the others are then written alone.
    """

    problem: PyTree
    method: PyTree
    carry: PyTree
    source: PyTree = STREAM
    per_seed: bool = False
    bounded: bool = False
    trust: UncheckedStep | None = None
    only_read: int = 0


@dataclass(frozen=True)
class Source:
    """A program as text, and what to hand it beside the arrays of the example: its constants, as tables.

    Attributes:
        twins: entries that must be equal to begin with: the number of a leaf, an entry and its twin.
    """

    text: str
    target: Target
    constants: tuple[np.ndarray, ...]
    lines: int
    twins: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Parts:
    """C for the places of a program.

    Args:
        outside: before all groups of lanes.
        before: what makes ready a group, or a thread.
        each_step: at the beginning of a step.
        declarations: of the arrays that a lane keeps at hand.
        step: the step.
        lines: how many it has.
        after: after all steps.
    """

    outside: Iterable[str]
    before: Iterable[str]
    each_step: Iterable[str]
    declarations: str
    step: str
    lines: int
    after: Iterable[str] = ()


def text(target: Target, carry: PyTree, parts: Parts) -> str:
    """The whole program. ``carry`` are the shapes of what a lane stores, ``s0``, ``s1``, … in the step."""
    width, load, store = target.width, [], []
    for i, leaf in enumerate(jax.tree.leaves(carry)):
        size, stored = math.prod(np.shape(leaf)), STORED_TYPES[np.dtype(leaf.dtype).name]
        load.append(each_lane(width, f"s{i}", stored, size, f"leaves[{i}]", "lane"))
        lane, own = ("lane", "j") if width == 1 else ("lane[l]", f"j*{width}+l")
        copy = f"for(int j=0;j<{size};j++)(({stored}*)leaves[{i}])[(int64_t){lane}*{size}+j]=({stored})s{i}[{own}];"
        store.append(copy if width == 1 else f"for(int l=0;l<{width};l++)if(used[l]){copy}")
    arguments = "int64_t methods,int64_t seeds,const void*const*tables,void*const*leaves,const uint32_t*streams"
    own = _LANE if width == 1 else _MIXED if target.mixed else _ALIKE
    lines = [
        head(),
        "#define RESTRICT restrict",
        f"void walk(int64_t lo,int64_t hi,int64_t first,int64_t last,{arguments}){{",
        *parts.outside,
        "for(int64_t group=first;group<last;group++){" + ("int64_t lane=group;" if width == 1 else ""),
        own.replace("WIDTH", str(width)),
        parts.declarations,
        *parts.before,
        *load,
        "for(int64_t step=lo;step<hi;step++){int32_t k=(int32_t)step;",
        *parts.each_step,
        parts.step,
        "}",
        *store,
        "}}",
    ]
    return "\n".join(lines) + "\n"


def each_lane(width: int, name: str, stored: str, size: int, source: str, of: str) -> str:
    """C that copies a lane's part of an array into the program's own."""
    part, to = (of, "j") if width == 1 else (f"{of}[l]", f"j*{width}+l")
    copy = f"for(int j=0;j<{size};j++){name}[{to}]=((const {stored}*){source})[(int64_t){part}*{size}+j];"
    return copy if width == 1 else f"for(int l=0;l<{width};l++){copy}"


@cache
def head() -> str:
    return resources.files("twoclock.codegen").joinpath("special.h").read_text()


# Which lanes a group holds. At the end of the seeds the last one is walked again, and kept once.
_LANE = "int64_t method=lane/seeds,seed=lane%seeds;(void)method;(void)seed;"
_ALIKE = """int64_t per=(seeds+WIDTH-1)/WIDTH,method=group/per,begin=group%per*WIDTH;
int64_t lane[WIDTH],seed[WIDTH];int used[WIDTH];
(void)method;
for(int l=0;l<WIDTH;l++){used[l]=begin+l<seeds;seed[l]=used[l]?begin+l:seeds-1;lane[l]=method*seeds+seed[l];}"""
_MIXED = """int64_t lane[WIDTH],seed[WIDTH],method[WIDTH];int used[WIDTH];
for(int l=0;l<WIDTH;l++){int64_t i=group*WIDTH+l;used[l]=i<methods*seeds;lane[l]=used[l]?i:methods*seeds-1;
method[l]=lane[l]/seeds;seed[l]=lane[l]%seeds;}"""
