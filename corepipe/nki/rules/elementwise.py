"""Checks of the instructions of VectorE, ScalarE and GpSimd, and of transfers."""

from __future__ import annotations

from typing import Any

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.breaking import Details, Engines, Views, broken, holds
from corepipe.nki.rules.table import RULES

PSUM = Space.PSUM


def _pair(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    """Two tiles, one of them in SBUF."""
    if reads[0].buffer.space is PSUM and reads[1].buffer.space is PSUM:
        raise broken(recorder, "both_in_psum", op)


def _copy(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    if engines[0] is Engine.SCALAR and len(engines) == 1 and holds(recorder, "scalar_copy"):
        raise broken(recorder, "scalar_copy", op)


def _activation(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    names = details.get("operands", ())
    for name, view in zip(names, reads[1:], strict=False):
        kind = view.dtype
        if name == "scale" and kind.name != "float32":
            raise broken(recorder, "scale_type", op, view, found=kind.name)
        if name == "bias" and kind.kind in "iub":
            raise broken(recorder, "bias_type", op, view, found=kind.name)


def _bounded(rule: str, least: int = 0, multiple: int = 1) -> Any:
    """Returns the check of the elements a partition of the first operand."""

    def check(
        recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
    ) -> None:
        free = reads[0].free
        limit = RULES[rule].limits[recorder.generation]
        if free < least or (free > limit and multiple == 1) or free % multiple:
            raise broken(recorder, rule, op, reads[0], found=free)

    return check


def _reduce(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    axes, ndim = sorted(details.get("axes", ())), reads[0].ndim
    if axes and (axes[0] < 1 or axes != list(range(ndim - len(axes), ndim))):
        raise broken(recorder, "reduce_axes", op, reads[0], found=tuple(axes))


def _predicated(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    kind = reads[-1].dtype
    if holds(recorder, "predicate_type") and (kind.kind != "u" or kind.itemsize > 4):
        raise broken(recorder, "predicate_type", op, reads[-1], found=kind.name)


ELEMENTWISE_CHECKS = {
    "tensor_tensor": _pair,
    "tensor_tensor_scan": _pair,
    "tensor_copy": _copy,
    "activation": _activation,
    "tensor_reduce": _reduce,
    "bn_stats": _bounded("bn_stats_elements"),
    "bn_aggr": _bounded("bn_aggr_elements", multiple=3),
    "max8": _bounded("max8_elements", least=8),
    "nc_find_index8": _bounded("max8_elements", least=8),
    "activation_reduce": _bounded("reduced_elements"),
    "range_select": _bounded("reduced_elements"),
    "tensor_copy_predicated": _predicated,
}
"""Checks by the name of the instruction."""
