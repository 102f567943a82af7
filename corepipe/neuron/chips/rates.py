"""Speeds of a core in a deployment: the data sheet's numbers times the efficiencies of the constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from corepipe.neuron.chips.constants import IDEAL, Constants
from corepipe.neuron.chips.hardware import Instance, Topology
from corepipe.neuron.chips.runtime_profile import AttentionStyle
from corepipe.neuron.formats import DType, Format

TILE = 128
"""Rows and columns of the systolic array (nki/guides/architecture/trainium_inferentia2_arch.rst)."""

MIN_CYCLES = 64
"""Shortest instruction of TensorE, VectorE and ScalarE, in cycles: nki/api/nki/isa."""

PLAIN = AttentionStyle()
"""One causal kernel for all lengths, and one copy of keys and values, stored token by token."""

LANES = 128
"""Lanes of VectorE, one for each partition (nki/guides/architecture/trainium_inferentia2_arch.rst)."""

STEP_STARTS = 3
"""Semaphores of a step around a ring: receive, reduce, send."""


@dataclass(frozen=True, slots=True)
class CoreLink:
    """A link between cores: seconds until the first byte arrives, and bytes a second of one core."""

    seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Mesh:
    """Cores that exchange values: their number, the link between them, and the seconds of a way around the
    ring."""

    degree: int
    link: CoreLink
    ring: float = 0.0


@dataclass(frozen=True, slots=True)
class CoreRates:
    """Speeds of one core in one deployment; operations, elements or bytes a second.

    `array`: True if matrices are cut into 128 x 128 tiles; `contraction`: elements of the inner dimension in
    a tile.  `exponentials`: on VectorE (0: it has none).  `read_share`: the share of the matrices that a step
    reads from memory; the rest stays on chip.  `on_chip`: bytes of the core's own memory, for an image's
    largest map or a prompt's scores (inf: not published).
    `group`: the link of the `degree` tensor ranks; `stage`: the mesh of all cores of a stage that has more
    (None: it has not).
    `style`: how the software runs attention.
    `lanes`: rows that VectorE computes at once (0: a decode step's softmax takes no time of its own).
    `sequence_parallel`: between the collectives of a prefill a rank has its part of the rows.
    """

    matmul: float
    attention: float
    vector: float
    scalar: float
    memory: float
    min_rows: int
    read_share: float
    degree: int
    group: CoreLink
    array: bool = True
    pass_seconds: float = 0.0
    start: float = 0.0
    descriptor: float = 0.0
    exchange: float = 0.0
    ring: float = 0.0
    style: AttentionStyle = PLAIN
    on_chip: float = inf
    contraction: int = TILE
    exponentials: float = 0.0
    sequence_parallel: bool = False
    stage: Mesh | None = None
    lanes: int = 0

    @property
    def mesh(self) -> Mesh:
        """The mesh of the tensor ranks."""
        return Mesh(self.degree, self.group, self.ring)

    def pieces(self, size: int) -> float:
        """Returns the seconds per byte of a transfer in pieces of `size` bytes."""
        return (1 + self.descriptor / size) / self.memory


def read_share(instance: Instance, matrix_bytes: int) -> float:
    """Returns the share of a core's matrices that each step reads from memory: those that do not fit the
    core's on-chip memory for weights, which inf1 alone has."""
    resident = (instance.chip.core.resident_weight_bytes or 0) * instance.lnc
    return 1 - min(1.0, resident / matrix_bytes) if matrix_bytes else 0.0


def core_rates(
    instance: Instance,
    fmt: Format,
    group: Sequence[int],
    *,
    sharing: float,
    read_share: float,
    constants: Constants = IDEAL,
    attention: AttentionStyle = PLAIN,
) -> CoreRates:
    """Returns the speeds of a core of the tensor group `group` (core numbers in the instance).

    `sharing`: cores that read from the core's memory bank at the same time, itself included; those that read
    less than it count in part (`sharing_of`).
    """
    silicon = instance.chip.core
    memory = constants.memory_efficiency * instance.bank_bytes_per_second / sharing
    memory = min(memory, instance.lnc * constants.core_bytes_per_second)
    speed = constants.engine_efficiency
    vector = instance.lnc * silicon.vector.elements_per_second * speed
    return CoreRates(
        matmul=instance.peak(fmt.multiplied) * speed,
        attention=instance.peak(fmt.multiplied if fmt.compute is DType.FP32 else fmt.compute) * speed,
        vector=vector,
        scalar=instance.lnc * silicon.scalar.elements_per_second * speed,
        memory=memory,
        min_rows=silicon.tensor.min_rows,
        read_share=read_share,
        degree=len(group),
        group=_group_link(instance, group, memory, constants),
        array=silicon.tensor.array is not None,
        pass_seconds=MIN_CYCLES / (silicon.vector.clock_hz * speed),
        start=constants.start_seconds,
        descriptor=constants.descriptor_bytes,
        exchange=constants.collective_seconds,
        ring=_ring_seconds(instance, group, constants),
        style=attention,
        on_chip=instance.lnc * (silicon.sbuf_bytes or inf),
        contraction=(silicon.tensor.contraction or {}).get(fmt.multiplied, TILE),
        lanes=instance.lnc * LANES,
        exponentials=instance.lnc * silicon.vector.exponentials_per_second * speed,
    )


def stage_mesh(instance: Instance, cores: Sequence[int], memory: float, constants: Constants) -> Mesh:
    """Returns the mesh of all cores of a stage; `memory`: bytes a second that a core reads from its
    memory."""
    link = _group_link(instance, cores, memory, constants)
    return Mesh(len(cores), link, _ring_seconds(instance, cores, constants))


def _ring_seconds(instance: Instance, group: Sequence[int], constants: Constants) -> float:
    step = (instance.chip.hop_seconds or 0.0) + STEP_STARTS * constants.start_seconds
    return ring_steps(instance, group) * step


def sharing_of(reads: float, others: Iterable[float]) -> float:
    """Returns among how many cores a memory bank's bandwidth is shared, for a core that reads `reads` bytes a
    step beside `others`, itself not among them.

    Bandwidth is shared evenly by those that still read: when a core has read r bytes, every other one has
    read as many, or all that it needs.  A core that reads no weights reads keys and values in parallel with
    all others that read.
    """
    if not reads:
        return 1.0 + sum(1 for other in others if other)
    return 1 + sum(min(other, reads) for other in others) / reads


def _group_link(instance: Instance, group: Sequence[int], memory: float, constants: Constants) -> CoreLink:
    """Returns a rank's part of the links, slowed by the time to add received data and to pass it on.

    One after the other: neuron-runtime/explore/intranode-collective-comm.rst.
    """
    way = link(instance, group, memory)
    speed = 1 / (1 / way.bytes_per_second + 1 / constants.collective_bytes_per_second)
    return CoreLink(way.seconds, speed)


def link(instance: Instance, cores: Sequence[int], on_chip: float) -> CoreLink:
    """Returns the link between `cores`: the longest way, and a core's part of its chip's links.

    Cores of one chip exchange through its memory, at `on_chip` bytes a second.
    """
    by_chip = [instance.chip_of(core) for core in cores]
    chips = sorted(set(by_chip))
    hops = max((instance.hops(chips[0], chip) for chip in chips[1:]), default=1)
    seconds = hops * (instance.chip.hop_seconds or 0.0)
    if len(chips) == 1 or instance.link_bytes_per_second is None:
        return CoreLink(seconds, on_chip)
    most = max(by_chip.count(chip) for chip in chips)
    return CoreLink(seconds, instance.link_bytes_per_second / most)


def ring_steps(instance: Instance, cores: Sequence[int]) -> int:
    """Returns the steps of an exchange in which every core passes parts on to its neighbour.

    On a ring of chips one for each further core; on a torus along one dimension after the other.
    """
    ranks = len(cores)
    if instance.topology is not Topology.TORUS_4X4:
        return ranks - 1
    chips = len({instance.chip_of(core) for core in cores})
    rows = ceil(chips / 4)
    return (rows - 1) + (ceil(chips / rows) - 1) + (ceil(ranks / chips) - 1)
