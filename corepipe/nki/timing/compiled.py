"""What the compiler makes of a recorded kernel: instructions, the memory that they take, and traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Buffer
from corepipe.nki.core.instructions import Event
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.timing.times import Memory, Traffic

Place = object
"""Shared by all buffers that one line of a kernel allocates, turn after turn."""

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


def place_of(buffer: Buffer) -> Place:
    """Returns the place of a buffer."""
    root = buffer.root
    return root.site, root.space, root.shape, root.name


def compiled(recorder: Recorder) -> Compiled:
    """Compiles what a run has recorded."""
    memory = Memory(0, 0, LIMITS[recorder.generation], PSUM_LIMIT)
    return Compiled(recorder.stream, memory, Traffic(0, 0, 0, 0))
