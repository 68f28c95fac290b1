"""The C program of a scan: a loop over steps in one function that XLA calls through its foreign function interface.

Small carries and temporaries are on the stack, large carries in the buffers of the results, and large temporaries in
memory that each call allocates. A call with leading batch axes, which ``jax.vmap`` makes, runs the loop for each entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from twoclock.codegen.arrays import Array, ArrayBuilder, ShapedType, Strided, Value
from twoclock.codegen.build import first_short_enough, store_states
from twoclock.codegen.c_printer import Printer
from twoclock.codegen.ir import STORED_TYPES, Buffer, Builder, Unsupported, c_type
from twoclock.codegen.lower import Lowering
from twoclock.codegen.templates import special_functions

# Entries up to which arrays become scalars, and the lines of C that this may take; tried in turn. The step of a
# derivative is several times as long as the step.
_TRIES = ((64, 4_000), (24, 4_000), (8, 8_000))
# Entries up to which an array is on the stack, and bytes that the temporaries of a step may take.
_ON_STACK, _SCRATCH = 1 << 10, 1 << 30

_HANDLER = """
static int64_t entries(const XLA_FFI_Buffer*b,int64_t from){
  int64_t n=1;for(int64_t d=from;d<b->rank;d++)n*=b->dims[d];return n;}
XLA_FFI_Error*walk(XLA_FFI_CallFrame*frame){
if(frame->extension_start&&frame->extension_start->type==XLA_FFI_Extension_Metadata){
  XLA_FFI_Metadata*m=((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
  m->api_version.major_version=XLA_FFI_API_MAJOR;m->api_version.minor_version=XLA_FFI_API_MINOR;m->traits=0;return 0;}
if(frame->stage!=XLA_FFI_ExecutionStage_EXECUTE)return 0;
int64_t length=*(const int64_t*)((const XLA_FFI_Scalar*)frame->attrs.attrs[0])->value;
XLA_FFI_Buffer**args=(XLA_FFI_Buffer**)frame->args.args,**rets=(XLA_FFI_Buffer**)frame->rets.rets;
static const int64_t in_rank[]={IN_RANKS},in_bytes[]={IN_BYTES},out_rank[]={OUT_RANKS},out_bytes[]={OUT_BYTES};
int64_t batch=rets[0]->rank-out_rank[0],lanes=1;
for(int64_t d=0;d<batch;d++)lanes*=rets[0]->dims[d];
char*scratch=SCRATCH?malloc(SCRATCH):0;
if(SCRATCH&&!scratch){
  XLA_FFI_Error_Create_Args e={XLA_FFI_Error_Create_Args_STRUCT_SIZE,0,"no memory for the temporaries of a scan",
    XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
  return frame->api->XLA_FFI_Error_Create(&e);}
uint64_t old=flush_subnormals();
for(int64_t lane=0;lane<lanes;lane++){
  const void*in[INPUTS+1];void*out[OUTPUTS+1];
  for(int i=0;i<INPUTS;i++){
    int64_t at=0,left=lane,step=1;
    for(int64_t d=args[i]->rank-in_rank[i]-1;d>=0;d--){
      int64_t n=rets[0]->dims[d];if(args[i]->dims[d]!=1)at+=left%n*step;
      step*=args[i]->dims[d];left/=n;}
    in[i]=(const char*)args[i]->data+at*in_bytes[i]*entries(args[i],args[i]->rank-in_rank[i]);}
  for(int i=0;i<OUTPUTS;i++)
    out[i]=(char*)rets[i]->data+lane*out_bytes[i]*entries(rets[i],batch);
  steps(length,in,out,scratch);}
restore_arithmetic(old);free(scratch);return 0;}
"""


@dataclass(frozen=True)
class ScanSource:
    """The program as text, and its constants, which are its last operands."""

    text: str
    constants: tuple[np.ndarray, ...]


def generate_scan(step: ClosedJaxpr, consts: int, carries: int, reverse: bool) -> ScanSource:
    """Generate the program of ``step(*consts, *carry, *x) -> (*carry, *y)``; raise ``Unsupported`` if impossible.

    Args:
        step: the traced step, without random keys among its inputs and outputs.
        consts: the number of inputs that are the same at each step.
        carries: the number of inputs and of outputs that are the carry.
        reverse: whether the steps go from the last x to the first.
    """
    return first_short_enough(_TRIES, lambda *limits: _ScanWriter(step, consts, carries, reverse, *limits).write())


class _ScanWriter:
    """Lowers the step, and collects the C around it."""

    def __init__(self, step: ClosedJaxpr, consts: int, carries: int, reverse: bool, small: int, most: int) -> None:
        self.step, self.consts, self.carries, self.reverse = step, consts, carries, reverse
        self.build = Builder(most)
        self.pointers: list[str] = []  # C before the steps
        self.constants: list[np.ndarray] = []
        self.arrays = ArrayBuilder(self.build, small, self._constant)

    def write(self) -> ScanSource:
        ins, outs = [list(avals) for avals in (self.step.in_avals, self.step.out_avals)]
        cut = self.consts + self.carries
        shared = [self._table(f"t{i}", leaf, i) for i, leaf in enumerate(ins[: self.consts])]
        states = [self._state(i, leaf) for i, leaf in enumerate(ins[self.consts : cut])]
        rows = [Strided.contiguous(_outside(f"x{i}", leaf), leaf) for i, leaf in enumerate(ins[cut:])]
        results = [_outside(f"y{i}", leaf) for i, leaf in enumerate(outs[self.carries :])]
        lowering = Lowering(self.build, self.arrays, lanes=False)
        lowering.jumps = True
        lowering.free = frozenset(state.memory for state in states)
        inputs: list[Value] = [*shared, *states, *rows]
        new = cast(list[Array], lowering.lower(self.step.jaxpr, self.step.consts, inputs))
        for memory, value in zip(results, new[self.carries :], strict=True):
            if math.prod(value.shape):
                self.arrays.write(memory, value)
        store_states(self.arrays, states, new[: self.carries])
        return ScanSource(self._text(ins, outs), tuple(self.constants))

    def _text(self, ins: Sequence[ShapedType], outs: Sequence[ShapedType]) -> str:
        cut, carried = self.consts + self.carries, self.carries
        load, store = [], []
        for i, leaf in enumerate(ins[self.consts : cut]):
            size, stored, source = math.prod(leaf.shape), _stored(leaf), f"in[{self.consts + i}]"
            if size <= _ON_STACK:
                load.append(f"for(int j=0;j<{size};j++)s{i}[j]=((const {stored}*){source})[j];")
                store.append(f"for(int j=0;j<{size};j++)(({stored}*)out[{i}])[j]=({stored})s{i}[j];")
            else:
                load.append(f"{stored}*RESTRICT s{i}=out[{i}];memcpy(s{i},{source},{size}*sizeof({stored}));")
        for i, x in enumerate(ins[cut:]):
            load.append(f"const {_stored(x)}*RESTRICT xs{i}=in[{cut + i}];")
        for i, y in enumerate(outs[carried:]):
            load.append(f"{_stored(y)}*RESTRICT ys{i}=out[{carried + i}];")
        each = [
            *(f"const {_stored(x)}*x{i}=xs{i}+t*{math.prod(x.shape)};" for i, x in enumerate(ins[cut:])),
            *(f"{_stored(y)}*y{i}=ys{i}+t*{math.prod(y.shape)};" for i, y in enumerate(outs[carried:])),
        ]
        large = [m for m in self.build.memories if m.size > _ON_STACK]
        scratch = 0
        for memory in large:
            self.pointers.append(f"{memory.c}*RESTRICT {memory.name}=({memory.c}*)(scratch+{scratch});")
            scratch += -(-memory.size * 8 // 64) * 64
        if scratch > _SCRATCH:
            raise Unsupported("the arrays inside a step are too large")
        printer = Printer(1, self.build.statements, single=True)
        here = [m for m in self.build.memories if m.size <= _ON_STACK]
        lines = [
            special_functions(),
            _ffi_header(),
            "#include <stdlib.h>\n#include <string.h>\n#define RESTRICT restrict",
            "static __attribute__((noinline))",
            "void steps(int64_t length,const void*const*in,void*const*out,char*scratch){",
            *self.pointers,
            printer.declarations(here),
            *load,
            f"for(int64_t n=0;n<length;n++){{int64_t t={'length-1-n' if self.reverse else 'n'};(void)t;",
            *each,
            printer.text(),
            "}",
            *store,
            "}",
            _handler([*ins, *self.constants], outs, cut, carried, scratch),
        ]
        return "\n".join(lines) + "\n"

    def _state(self, number: int, leaf: ShapedType) -> Strided:
        size = max(math.prod(leaf.shape), 1)
        memory = Buffer(f"s{number}", c_type(leaf.dtype), size, True, stored=_stored(leaf))
        if size <= _ON_STACK:
            self.build.memories.append(memory)
        return Strided.contiguous(memory, leaf)

    def _table(self, name: str, leaf: ShapedType, operand: int) -> Strided:
        memory = _outside(name, leaf)
        self.pointers.append(f"const {memory.stored}*RESTRICT {name}=(const {memory.stored}*)in[{operand}];")
        return Strided.contiguous(memory, leaf)

    def _constant(self, value: np.ndarray) -> Buffer:
        value = np.ascontiguousarray(value)
        self.constants.append(value)
        number = len(self.constants) - 1
        return self._table(f"c{number}", value, len(self.step.in_avals) + number).memory


def _outside(name: str, leaf: ShapedType) -> Buffer:
    """Declare an array that XLA allocates."""
    return Buffer(name, c_type(leaf.dtype), max(math.prod(leaf.shape), 1), True, table=True, stored=_stored(leaf))


def _stored(leaf: ShapedType) -> str:
    c_type(leaf.dtype)
    if math.prod(leaf.shape) >= 1 << 31:
        raise Unsupported("an array has more than two thousand million entries")
    return STORED_TYPES[np.dtype(leaf.dtype).name]


def _handler(ins: Sequence[ShapedType], outs: Sequence[ShapedType], cut: int, carried: int, scratch: int) -> str:
    """Write the function that XLA calls; stacked arrays have one more axis than in a step."""
    count = len(ins)

    def numbers(values: Sequence[int]) -> str:
        return ",".join(map(str, values)) or "0"

    stacked_in = range(cut, count)
    ranks = [len(leaf.shape) + (i in stacked_in and not isinstance(leaf, np.ndarray)) for i, leaf in enumerate(ins)]
    text = _HANDLER
    for name, value in {
        "IN_RANKS": numbers(ranks),
        "IN_BYTES": numbers([np.dtype(leaf.dtype).itemsize for leaf in ins]),
        "OUT_RANKS": numbers([len(leaf.shape) + (i >= carried) for i, leaf in enumerate(outs)]),
        "OUT_BYTES": numbers([np.dtype(leaf.dtype).itemsize for leaf in outs]),
        "SCRATCH": str(scratch),
        "INPUTS": str(count),
        "OUTPUTS": str(len(outs)),
    }.items():
        text = text.replace(name, value)
    return text


@cache
def _ffi_header() -> str:
    return Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
