"""Names of Ops and layers in a profile: an Op by its type and the module of its weight."""

from __future__ import annotations

import re

from corepipe.neuron.compile.program import Program
from corepipe.neuron.ops import AllGather, AllReduce, Op, Receive, Send

IN_LAYER = re.compile(r"^.*?\.\d+\.")
"""The prefix of a checkpoint's names before the module's name within its layer."""


def op_names(program: Program) -> list[str]:
    """Returns a name for each Op of the Program, such as "L3 Linear self_attn.q_proj"."""
    makers: dict[int, str] = {}
    names = []
    for op in program.ops:
        makers[op.out.id] = _what(op, makers)
        where = f"L{op.layer}" if op.layer in program.layers else ""
        names.append(" ".join(filter(None, (where, type(op).__name__, makers[op.out.id]))))
    return names


def layer_name(layer: int, layers: int) -> str:
    """Returns the name of a layer's slice."""
    if layer < 0:
        return "embedding"
    return f"layer {layer}" if layer < layers else "head"


def _what(op: Op, makers: dict[int, str]) -> str:
    """Returns the module of the Op's weight; for a collective the module whose result it takes."""
    if op.weights:
        return IN_LAYER.sub("", op.weights[0].name).removesuffix(".weight")
    match op:
        case AllReduce() | AllGather():
            return makers[op.x.id]
        case Send() | Receive():
            return f"core {op.peer}"
        case _:
            return ""
