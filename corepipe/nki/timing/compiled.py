"""Compiles a recorded kernel as the compiler would: instructions, the memory that they take, and traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Event
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.memory import check_memory
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

LIMITS = {"v2": 176 << 10, "v3": 208 << 10, "v4": 240 << 10}
"""Bytes of a partition of SBUF that kernels can use: 16 KiB of 192 (v2), 224 (v3) and 256 (v4) are reserved.

v2 and v3 are what users report from compilers; v4 is assumed to reserve as much."""

PSUM_LIMIT = 16 << 10


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
    limit = LIMITS[recorder.generation]
    sbuf, sbuf_peak = peak(program, in_space(program, Space.SBUF))
    psum, psum_peak = peak(program, in_space(program, Space.PSUM))
    memory = Memory(sbuf, psum, limit, PSUM_LIMIT, sbuf_peak, psum_peak)
    check_memory(recorder, Space.SBUF, sbuf, limit)
    check_memory(recorder, Space.PSUM, psum, PSUM_LIMIT)
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
        numbers = copies(program, {Space.SBUF: limit, Space.PSUM: PSUM_LIMIT})
    stream, weights = changes.applied(program)
    return Compiled(stream, memory, traffic(stream, weights), numbers)
