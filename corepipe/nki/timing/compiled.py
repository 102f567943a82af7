"""Compiles a recorded kernel as the compiler would: instructions, the memory that they take, and traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Event
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.memory import PSUM_BYTES, check_memory, limit_of, note_spills
from corepipe.nki.timing.blocks import Place, place_of, scanned
from corepipe.nki.timing.hoisting import fuse, hoist
from corepipe.nki.timing.liveness import in_space, peak
from corepipe.nki.timing.placement import copies, to_psum
from corepipe.nki.timing.profile import (
    FUSED_LOOPS,
    MOVED_LOADS,
    MOVED_RESULTS,
    PROFILES,
    PSUM_RESULTS,
    ROTATION,
    SPILLS,
    CompilerRule,
)
from corepipe.nki.timing.results import without_repeats
from corepipe.nki.timing.spills import absences
from corepipe.nki.timing.times import Memory, Traffic
from corepipe.nki.timing.transfers import Changes, Transfers, traffic

__all__ = ["Compiled", "Place", "compiled", "place_of"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as the device executes it.

    stream: its instructions and loops.  Transfers that the compiler inserts have the detail `kind`: `spilled`
    (SBUF to HBM) or `reloaded`, and the line where their tensor is written or read.
    copies: how many blocks of the tensors of a place exist at a time; they are used in turn.
    """

    stream: Sequence[Event]
    memory: Memory
    traffic: Traffic
    copies: Mapping[Place, int] = field(default_factory=dict)


def compiled(recorder: Recorder, rules: Sequence[CompilerRule] | None = None) -> Compiled:
    """Compiles what a run has recorded, by rules; by default those of the dialect.

    Legacy kernels are rearranged; current ones run as they are written.  Raises KernelError for one of those
    that needs more memory than there is.
    """
    names = frozenset(rule.name for rule in (PROFILES[recorder.legacy] if rules is None else rules))
    once = MOVED_RESULTS.name in names
    program = scanned(without_repeats(recorder.stream) if once else recorder.stream)
    limit = limit_of(Space.SBUF, recorder.generation)
    sbuf, sbuf_peak = peak(program, in_space(program, Space.SBUF))
    psum, psum_peak = peak(program, in_space(program, Space.PSUM))
    memory = Memory(sbuf, psum, limit, PSUM_BYTES, sbuf_peak, psum_peak)
    check_memory(recorder, Space.SBUF, sbuf)
    check_memory(recorder, Space.PSUM, psum)
    changes = Changes()
    if FUSED_LOOPS.name in names:
        program, changes.gone = fuse(program)
    if MOVED_LOADS.name in names:
        changes.gone |= hoist(program, limit, names)
    if SPILLS.name in names:
        Transfers(program, changes).add(absences(program, limit, names))
    if PSUM_RESULTS.name in names:
        to_psum(program)
    numbers: dict[Place, int] = {}
    if ROTATION.name in names:
        numbers = copies(program, {Space.SBUF: limit, Space.PSUM: PSUM_BYTES})
    stream, weights = changes.applied(program)
    moved = traffic(stream, weights)
    note_spills(recorder, stream, sbuf, moved.spilled)
    return Compiled(stream, memory, moved, numbers)
