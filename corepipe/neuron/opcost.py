"""What one Op costs on one core, as a few lines in the number of rows; `cost` adds them up.

An Op takes the longer of its arithmetic and its memory traffic (roofline, Williams et al. 2009):
- a Linear does 2NK operations a row at the peak of the format, over at least `min_rows` rows, and reads
  its weights once, unless they stay on chip;
- attention does 4 x head size operations a head and key attended, an exponential each on the scalar
  engine, and reads the K and V of the sequences' contexts;
- the other Ops are passes of the vector and scalar engines.
Between the Ops of a Program activations stay on chip; embedding rows, new K and V and logits do not.
A collective takes its hops and its payload over the link; its links are used in turn, not beside
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corepipe.neuron.graph import (
    Add,
    AllGather,
    AllReduce,
    Attention,
    Axis,
    DType,
    Embed,
    Format,
    GatedActivation,
    Linear,
    Op,
    Receive,
    RMSNorm,
    Rope,
    Rows,
    SelectRows,
    Send,
    WeightRole,
)
from corepipe.neuron.hardware import Instance

RMSNORM_PASSES = 2  # sum of squares, scale
ROPE_PASSES = 3  # two products, one sum
GATE_PASSES = 2  # sigmoid times gate, times up


def weight_bytes(shape: tuple[int, ...], role: WeightRole, fmt: Format) -> int:
    """Bytes of a stored weight; an int8 matrix has one fp32 scale a row."""
    elements = 1
    for n in shape:
        elements *= n
    match role:
        case WeightRole.MATRIX:
            scales = 4 * shape[0] if fmt.weights is DType.INT8 else 0
            return elements * fmt.weights.bytes + scales
        case WeightRole.EMBEDDING:
            return elements * fmt.compute.bytes
        case WeightRole.VECTOR:
            return elements * DType.FP32.bytes


@dataclass(frozen=True, slots=True)
class Link:
    """Between cores: seconds until the first byte arrives, and bytes a second of one core."""

    seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class CoreRates:
    """Speeds of one core in one deployment; operations, elements or bytes a second.

    `reads_weights`: False where they stay on chip.  `group` joins the `degree` tensor ranks.
    """

    matmul: float
    attention: float
    vector: float
    scalar: float
    memory: float
    min_rows: int
    reads_weights: bool
    degree: int
    group: Link


@dataclass(frozen=True, slots=True)
class OpCost:
    """Seconds over M rows: max(floor, compute M, weights + traffic M) + link + link_row M; 0 for no rows."""

    rows: Rows
    floor: float = 0.0
    compute: float = 0.0
    weights: float = 0.0
    traffic: float = 0.0
    link: float = 0.0
    link_row: float = 0.0

    def lines(self) -> tuple[tuple[float, float], ...]:
        """(at zero rows, a row) of the lines whose maximum is the time on the core's own engines."""
        return (self.floor, 0.0), (0.0, self.compute), (self.weights, self.traffic)

    def arithmetic(self, rows: int) -> float:
        return max(self.floor, self.compute * rows)

    def memory(self, rows: int) -> float:
        return self.weights + self.traffic * rows


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Seconds: max(compute a key attended, traffic a context token + write a row).

    `window` bounds the context of a sequence and the keys of a row.
    """

    window: int | None
    compute: float
    traffic: float
    write: float

    def arithmetic(self, rows: int, attended: int) -> float:
        return self.compute * (attended if self.window is None else min(attended, rows * self.window))

    def memory(self, rows: int, sequences: int, kv_tokens: int) -> float:
        seen = kv_tokens if self.window is None else min(kv_tokens, sequences * self.window + rows)
        return self.traffic * seen + self.write * rows


def keeps_weights(instance: Instance, matrix_bytes: int) -> bool:
    """Whether a core keeps its matrices on chip from step to step: on inf1 those that are small enough."""
    resident = instance.chip.core.resident_weight_bytes
    return resident is not None and matrix_bytes <= resident * instance.lnc


def core_rates(
    instance: Instance, fmt: Format, group: Sequence[int], *, sharing: int, reads_weights: bool
) -> CoreRates:
    """Speeds of a core of the tensor group `group` (core numbers in the instance).

    `sharing`: cores that draw on the core's memory bank at once, itself included; the share of each is
    bounded by its DMA engines.
    """
    silicon = instance.chip.core
    memory = instance.bank_bytes_per_second / sharing
    if silicon.dma_bytes_per_second is not None:
        memory = min(memory, instance.lnc * silicon.dma_bytes_per_second)
    multiplied = fmt.weights if fmt.weights is fmt.activations else fmt.compute
    return CoreRates(
        matmul=instance.peak(multiplied),
        attention=instance.peak(fmt.compute),
        vector=instance.lnc * silicon.vector.elements_per_second,
        scalar=instance.lnc * silicon.scalar.elements_per_second,
        memory=memory,
        min_rows=silicon.tensor.min_rows,
        reads_weights=reads_weights,
        degree=len(group),
        group=link(instance, group, memory),
    )


def link(instance: Instance, cores: Sequence[int], on_chip: float) -> Link:
    """How `cores` reach one another: the longest way, and a core's part of its chip's links.

    Cores of one chip exchange through its memory, at `on_chip` bytes a second.
    """
    by_chip = [instance.chip_of(core) for core in cores]
    chips = sorted(set(by_chip))
    hops = max((instance.hops(chips[0], chip) for chip in chips[1:]), default=1)
    seconds = hops * instance.chip.hop_seconds
    if len(chips) == 1 or instance.link_bytes_per_second is None:
        return Link(seconds, on_chip)
    crowd = max(by_chip.count(chip) for chip in chips)
    return Link(seconds, instance.link_bytes_per_second / crowd)


def attention_cost(op: Attention, fmt: Format, rates: CoreRates) -> AttentionCost:
    """Cost of one attention Op."""
    layout = op.heads
    products = 4 * layout.head_dim * layout.heads / rates.attention
    traffic = 2 * layout.kv_heads * layout.head_dim * fmt.compute.bytes / rates.memory
    return AttentionCost(op.window, max(products, layout.heads / rates.scalar), traffic, traffic)


def op_cost(op: Op, fmt: Format, rates: CoreRates) -> OpCost | AttentionCost:
    """Cost of one Op.  Raises TypeError for a kind of Op that is not known.

    Send and Receive cost the core nothing: the DMA engines move activations.
    """
    match op:
        case Attention():
            return attention_cost(op, fmt, rates)
        case Linear():
            return _linear(op, fmt, rates)
        case Embed():
            return OpCost(op.out.rows, traffic=op.out.width * fmt.compute.bytes / rates.memory)
        case AllReduce() | AllGather():
            return _collective(op, fmt, rates)
        case Send() | Receive():
            return OpCost(op.out.rows)
        case _:
            return OpCost(op.out.rows, compute=_elementwise(op, rates))


def _elementwise(op: Op, rates: CoreRates) -> float:
    """Seconds a row: passes of the vector engine, beside it the scalar engine's exponential."""
    vector = op.out.width / rates.vector
    match op:
        case RMSNorm():
            return RMSNORM_PASSES * vector
        case Rope():
            return ROPE_PASSES * vector
        case GatedActivation():
            return max(GATE_PASSES * vector, op.out.width / rates.scalar)
        case Add() | SelectRows():
            return vector
        case _:
            raise TypeError(f"no cost is known for {type(op).__name__}")


def _linear(op: Linear, fmt: Format, rates: CoreRates) -> OpCost:
    shape = (op.out.width, op.x.width)
    row = 2 * shape[0] * shape[1] / rates.matmul
    stored = weight_bytes(shape, WeightRole.MATRIX, fmt) if rates.reads_weights else 0
    leaves = op.out.width * fmt.compute.bytes if op.out.axis is Axis.VOCAB else 0
    return OpCost(
        op.out.rows,
        floor=row * rates.min_rows,
        compute=row,
        weights=stored / rates.memory,
        traffic=leaves / rates.memory,
    )


def _collective(op: AllReduce | AllGather, fmt: Format, rates: CoreRates) -> OpCost:
    """An all-gather is one exchange, an all-reduce two: a reduce-scatter and an all-gather.

    In each a rank passes on (degree - 1) / degree of the payload.
    """
    exchanges = 2 if isinstance(op, AllReduce) else 1
    moved = op.out.width * fmt.compute.bytes * (rates.degree - 1) / rates.degree
    return OpCost(
        op.out.rows,
        link=exchanges * rates.group.seconds,
        link_row=exchanges * moved / rates.group.bytes_per_second,
    )
