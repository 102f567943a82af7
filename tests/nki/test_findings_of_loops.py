"""Dependences between turns of loops, against the elements that each turn reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe import nki
from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import LoopKind
from corepipe.nki.core.recorder import Recorder, recording
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.isa.vector import memset, tensor_copy
from corepipe.nki.rules.dependences import find_dependences
from corepipe.nki.rules.findings import examine
from tests.nki.test_rules_of_kernels import MODULES

CELLS = 6
"""Parts of the tensor that turns share."""

Access = tuple[bool, int, int]
"""True for a write, then the first cell and the one after the last."""


@st.composite
def turns(draw: st.DrawFn) -> list[list[Access]]:
    """Draws the accesses of 2 to 4 turns; within a turn each cell is written once."""
    found = []
    for _ in range(draw(st.integers(2, 4))):
        accesses, free = [], set(range(CELLS))
        for _ in range(draw(st.integers(0, 4))):
            first = draw(st.integers(0, CELLS - 1))
            last = draw(st.integers(first + 1, CELLS))
            writes = draw(st.booleans()) and free >= set(range(first, last))
            free -= set(range(first, last)) if writes else set()
            accesses.append((writes, first, last))
        found.append(accesses)
    return found


def expected(loop: Sequence[Sequence[Access]]) -> set[str]:
    """Returns what there is to find, element by element."""
    exposed: list[set[int]] = []
    written: list[set[int]] = []
    for accesses in loop:
        own: set[int] = set()
        before: set[int] = set()
        for writes, first, last in accesses:
            cells = set(range(first, last))
            if writes:
                own |= cells
            else:
                before |= cells - own
        exposed.append(before)
        written.append(own)
    pairs = [(t, u) for t in range(len(loop)) for u in range(len(loop)) if t != u]
    if any(exposed[t] & written[u] for t, u in pairs):
        return {"carried_dependence"}
    return {"overlapping_writes"} if any(written[t] & written[u] for t, u in pairs) else set()


def part(view: View, first: int, last: int) -> View:
    return view[:, first * 4 : last * 4]


@given(loop=turns(), outer=st.booleans())
def test_turns_that_touch_the_same_elements_are_found(loop: list[list[Access]], outer: bool) -> None:
    """Runs the loop alone, or in each turn of a loop whose turns have tensors of their own."""
    recorder = Recorder("v2", legacy=True, values=False, whole=True)
    with recording(recorder):
        for _ in recorder.loop(LoopKind.AFFINE, range(2 if outer else 1)):
            shared = whole(recorder.allocate(Space.SBUF, (1, CELLS * 4), np.float32))
            memset(shared, 0)
            for turn in recorder.loop(LoopKind.AFFINE, range(len(loop))):
                for writes, first, last in loop[turn]:
                    own = whole(recorder.allocate(Space.SBUF, (1, 4 * (last - first)), np.float32))
                    views = (part(shared, first, last), own)
                    tensor_copy(*views) if writes else tensor_copy(*reversed(views))
    find_dependences(recorder)
    found = {f.rule for f in recorder.findings.values()}
    # A read of several cells, of which a turn has written some, counts as a read of all.
    partial = any(
        not writes and {c for w, a, b in accesses[:at] if w for c in range(a, b)} & set(range(first, last))
        for accesses in loop
        for at, (writes, first, last) in enumerate(accesses)
    )
    assert found == expected(loop) or (partial and "carried_dependence" in found)


def test_a_sequential_loop_may_carry_what_it_likes() -> None:
    recorder = Recorder("v2", legacy=True, values=False)
    with recording(recorder):
        held = whole(recorder.allocate(Space.SBUF, (1, 8), np.float32))
        memset(held, 0)
        for _ in recorder.loop(LoopKind.SEQUENTIAL, range(4)):
            tensor_copy(held[:, 0:4], held[:, 4:8])
            tensor_copy(held[:, 4:8], held[:, 0:4])
    find_dependences(recorder)
    assert not recorder.findings


@pytest.mark.parametrize("name", ["carried_dependence", "overlapping_writes", "outer_buffer", "scope"])
def test_what_loops_do_is_found_without_values(name: str) -> None:
    kernel, x = getattr(MODULES["legacy"], name), np.zeros((128, 512), np.float32)
    broken = nki.simulate(kernel, x, values=False, mended=False)
    assert name in {f.rule for f in broken.findings}
    assert not nki.simulate(kernel, x, values=False, mended=True).findings


def test_a_tensor_that_nothing_writes_is_found_without_values() -> None:
    recorder = Recorder("v2", legacy=False, values=False)
    with recording(recorder):
        a, b = (whole(recorder.allocate(Space.SBUF, (8, 8), np.float32)) for _ in range(2))
        tensor_copy(a, b)
        examine(recorder, [a])
    assert [f.rule for f in recorder.findings.values()] == ["uninitialised"]
