"""Faults that do not stop a kernel, found in what a run has recorded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from corepipe.nki.core.buffers import Array, Buffer, Space
from corepipe.nki.core.errors import Site
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.core.tensors import View
from corepipe.nki.rules.breaking import found
from corepipe.nki.rules.dependences import find_dependences


def examine(recorder: Recorder, outputs: Sequence[View]) -> None:
    """Notes the findings of a whole run; `outputs` are the tensors that the kernel returned."""
    instructions = [e for e in recorder.stream if isinstance(e, Instruction)]
    returned = {v.buffer.root for v in outputs}
    find_dependences(recorder)
    if not recorder.values:
        _unwritten_reads(recorder, instructions)
    _unused_results(recorder, instructions, returned)
    last: dict[Buffer, Site] = {r.buffer: e.site for e in instructions for r in e.writes}
    for view in outputs:
        _output(recorder, view, last)
    for buffer, site in last.items():
        if buffer.given and buffer not in returned and returned:
            found(recorder, "input_written", site, operand=buffer.name or "an input")


def _unwritten_reads(recorder: Recorder, instructions: Sequence[Instruction]) -> None:
    """Notes tensors in SBUF that are read and never written; runs with values tell it by element."""
    written = {r.buffer for e in instructions for r in e.writes}
    for event in instructions:
        for region in event.reads:
            buffer = region.buffer
            if buffer.space is Space.SBUF and buffer not in written:
                name, count = buffer.name or "the tensor", prod(b - a for a, b in region.box)
                found(recorder, "uninitialised", event.site, operand=name, found=count, count=count)


def _unused_results(recorder: Recorder, instructions: Sequence[Instruction], returned: set[Buffer]) -> None:
    """Notes instructions whose results on chip nothing reads."""
    read = {r.buffer for e in instructions for r in e.reads} | returned
    for event in instructions:
        if event.details.get("reduce") and len(event.writes) == 1:
            continue  # the result is in the engine's registers
        if all(r.buffer.space is not Space.HBM and r.buffer not in read for r in event.writes):
            found(recorder, "unused_result", event.site, op=event.op)


def _output(recorder: Recorder, view: View, last: dict[Buffer, Site]) -> None:
    """Notes what is wrong with an output: elements that nothing wrote, and NaN."""
    root = view.buffer.root
    name = root.name or "the output"
    if root.given:
        return
    if root not in last:
        found(recorder, "unwritten_output", root.site, operand=name, found=view.size, count=view.size)
        return
    flags = view.written() if recorder.values else None
    if flags is not None and not flags.all():
        missing = int(flags.size - flags.sum())
        found(recorder, "unwritten_output", root.site, operand=name, found=missing, count=view.size)
    elif recorder.values and (count := _nans(view.array())) and not _nans_given(recorder):
        found(recorder, "nan_output", last[root], operand=name, found=count, count=view.size)


def _nans_given(recorder: Recorder) -> bool:
    return any(_nans(b.data) for b in recorder.buffers if b.given)


def _nans(values: Array | None) -> int:
    if values is None or values.dtype.kind in "iub":
        return 0
    return int(np.isnan(values.astype(np.float32)).sum())
