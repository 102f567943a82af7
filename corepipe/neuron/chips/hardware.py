"""The hardware of a Neuron instance: types of chips, cores and engines, with derived quantities.

Every number has its source, a file of the Neuron SDK's documentation (repository aws-neuron-sdk, commit
81ce03ae, SDK 2.32): `record.source("field")` names it.  The data are in `catalog`.

Units: bytes, seconds, operations per second (a multiply-add is two), US dollars.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from corepipe.errors import UserError
from corepipe.neuron.formats import DType, Format

GIB = 1024**3
MIB = 1024**2

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "collectives")
"""The engines of a core as `tables.OpTime` names them; no Op runs on GpSimdE yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A record whose numbers are documented: `sources` maps the name of a field to its source."""

    sources: Mapping[str, str] = field(repr=False, compare=False)

    def source(self, name: str) -> str:
        """Returns the source of the number in field `name`.  Raises KeyError for a field without a number."""
        return self.sources[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEngine(Sourced):
    """The systolic array.  `peak` holds the formats that the chip lists, in operations a second.

    `min_rows`: an instruction over fewer rows takes as long as over this many.  `contraction`: elements of
    the inner dimension that a tile processes at once, for formats where that is more than the array's rows.
    """

    peak: Mapping[DType, float]
    min_rows: int
    array: tuple[int, int] | None
    clock_hz: float | None
    contraction: Mapping[DType, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(Sourced):
    """VectorE or ScalarE: `lanes` bf16 elements a cycle; exp_lanes: exponentials a cycle (None: none)."""

    name: str
    lanes: int
    clock_hz: float
    exp_lanes: int | None = None

    @property
    def elements_per_second(self) -> float:
        return self.lanes * self.clock_hz

    @property
    def exponentials_per_second(self) -> float:
        return (self.exp_lanes or 0) * self.clock_hz


@dataclass(frozen=True, slots=True, kw_only=True)
class Core(Sourced):
    """One physical NeuronCore.

    `resident_weight_bytes`: weights that a core keeps on chip from one step to the next (NeuronCore Pipeline,
    inf1 alone).  `dma_bytes_per_second`: the speed that its DMA engines sustain.  None: not published.
    """

    version: str
    tensor: TensorEngine
    vector: Engine
    scalar: Engine
    sbuf_bytes: int | None
    psum_bytes: int | None
    resident_weight_bytes: int | None
    dma_bytes_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip(Sourced):
    """One Neuron device.  Its memory consists of `banks` of equal size and bandwidth.

    Consecutive cores share a bank evenly: on inf1 all four share one, on inf2 each core has its own.
    hop_seconds None: not published, and nothing is added for it.  hypothetical: why times on it are not
    predictions; empty for chips of which measurements were published.
    """

    name: str
    core: Core
    cores: int
    memory_bytes: int
    memory_bytes_per_second: float
    banks: int
    hop_seconds: float | None
    weight_only_int8: bool
    default_lnc: int = 1
    hypothetical: str = ""


class Topology(StrEnum):
    """The links between the chips of an instance."""

    NONE = "none"
    CHAIN = "chain"
    RING = "ring"
    TORUS_4X4 = "4x4 torus"
    SWITCH = "switch"


class Support(StrEnum):
    """The support of a chip for a number format."""

    NATIVE = "native"
    EMULATION_ONLY = "emulation only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance(Sourced):
    """One instance size.  Cores are logical: `lnc` physical ones act as one (trn2: 2 unless set to 1).

    `link_bytes_per_second` is the speed at which one chip sends to its neighbours, all links together.
    `tensor_degrees`: the degrees that the Neuron stack accepts.  None: not published.

    part: the cores that a deployment may use, where the others are taken; the deployment counts them from 0.
    """

    name: str
    chip: Chip
    chips: int
    vcpus: int | None
    host_memory_bytes: int | None
    topology: Topology
    link_bytes_per_second: float | None
    tensor_degrees: tuple[int, ...]
    on_demand_per_hour: float | None
    reserved_per_hour: float | None
    lnc: int
    part: range | None = None

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def cores_per_chip(self) -> int:
        return self.chip.cores // self.lnc

    @property
    def cores(self) -> int:
        return self.chips * self.cores_per_chip if self.part is None else len(self.part)

    @property
    def cores_per_bank(self) -> int:
        return self.cores_per_chip // self.chip.banks

    @property
    def bank_bytes(self) -> int:
        return self.chip.memory_bytes // self.chip.banks

    @property
    def bank_bytes_per_second(self) -> float:
        return self.chip.memory_bytes_per_second / self.chip.banks

    @property
    def hypothetical(self) -> str:
        """The reason why figures of this instance are hypothetical; empty where they are not."""
        return self.chip.hypothetical

    @property
    def standing(self) -> str:
        """The label of this instance's figures, in a word or two."""
        return "emulated, hypothetical" if self.hypothetical else "emulated"

    @property
    def price_per_hour(self) -> float | None:
        """The on-demand price; the reserved price where no other is documented."""
        return self.reserved_per_hour if self.on_demand_per_hour is None else self.on_demand_per_hour

    def chip_of(self, core: int) -> int:
        return (self._first + core) // self.cores_per_chip

    def bank_of(self, core: int) -> int:
        return (self._first + core) // self.cores_per_bank

    @property
    def _first(self) -> int:
        return 0 if self.part is None else self.part.start

    def room(self, bank: int) -> int:
        """Returns the bytes of a bank that the deployment may use: of a `part`, the share of its cores."""
        if self.part is None:
            return self.bank_bytes
        begin = bank * self.cores_per_bank
        held = len(range(max(begin, self.part.start), min(begin + self.cores_per_bank, self.part.stop)))
        return self.bank_bytes * held // self.cores_per_bank

    def neighbours(self, chip: int) -> tuple[int, ...]:
        """Returns the chips linked to `chip`, in the order in which neuron-ls lists them."""
        return tuple(dict.fromkeys(n for n in self._links(chip) if n != chip))

    def _links(self, chip: int) -> tuple[int, ...]:
        before, after = chip - 1, chip + 1
        match self.topology:
            case Topology.NONE:
                return ()
            case Topology.CHAIN:
                return tuple(n for n in (before, after) if 0 <= n < self.chips)
            case Topology.RING:
                return before % self.chips, after % self.chips
            case Topology.TORUS_4X4:
                row, column = divmod(chip, 4)
                across = (row * 4 + (column - 1) % 4, row * 4 + (column + 1) % 4)
                return (chip - 4) % 16, across[0], (chip + 4) % 16, across[1]
            case Topology.SWITCH:
                return tuple(range(self.chips))

    def hops(self, a: int, b: int) -> int:
        """Returns the number of links on the shortest way from chip `a` to chip `b`."""
        distance, queue = {a: 0}, deque([a])
        while queue and b not in distance:
            chip = queue.popleft()
            for near in self.neighbours(chip):
                if near not in distance:
                    distance[near] = distance[chip] + 1
                    queue.append(near)
        return distance[b]

    def peak(self, dtype: DType) -> float:
        """Returns the operations per second of one logical core.

        A format that the chip does not list is timed as the nearest that it has: fp32 in four bf16 passes (as
        NeuronCore-v2 and -v3 do it: nki/api/nki/isa, nc_matmul), every other one as bf16.
        """
        peaks = self.chip.core.tensor.peak
        passes = 4 if dtype is DType.FP32 else 1
        return self.lnc * peaks.get(dtype, peaks[DType.BF16] / passes)

    def support(self, fmt: Format) -> Support:
        """Returns whether the chip supports the format.

        int8 weights with bf16 arithmetic are supported by the software, and MXFP4 weights are widened as they
        are multiplied; no chip lists integers of four bits.
        """
        if fmt.weights is DType.INT4:
            native = False
        elif fmt.weights is not fmt.activations and fmt.weights is not DType.MXFP4:
            native = self.chip.weight_only_int8
        else:
            native = fmt.weights in self.chip.core.tensor.peak
        return Support.NATIVE if native else Support.EMULATION_ONLY

    def with_lnc(self, lnc: int) -> Instance:
        """Returns the same instance with another logical NeuronCore configuration.  Raises UserError."""
        if lnc not in {1, self.chip.default_lnc}:
            allowed = " or ".join(map(str, sorted({1, self.chip.default_lnc})))
            raise UserError(f"{self.name} has {allowed} physical cores in a logical one, not {lnc}", "lnc")
        return replace(self, lnc=lnc)

    def with_part(self, first: int, cores: int) -> Instance:
        """Returns the same instance, of which a deployment may use so many cores, from core `first` on."""
        return replace(self, part=range(first, first + cores))


def hypothetical(instance: Instance) -> dict[str, str]:
    """Returns the entry that marks a document's figures of the instance as hypothetical; empty where they are
    not."""
    return {"hypothetical": instance.hypothetical} if instance.hypothetical else {}


def dollars_per_million_tokens(price_per_hour: float, tokens_per_second: float) -> float:
    """Returns dollars for a million tokens at a price in dollars an hour.  Raises ValueError for no
    tokens."""
    if not tokens_per_second > 0:
        raise ValueError(f"tokens_per_second must be positive, not {tokens_per_second}")
    return 1e6 / tokens_per_second * price_per_hour / 3600
