"""Parts of which the costs of Ops are made.

Within an Op the engines work in parallel, so an Op takes as long as its busiest engine, after a start-up time
that nothing hides (a transfer's semaphore; weights are fetched in advance).  Ops follow one another.
- TensorE: 128 x 128 tiles of the weights, each over max(64, rows) columns (nki/api/nki/isa, nc_matmul); for
formats that are multiplied several at a time, tiles of 256 (fp8) or 512 (MX) x 128.
- VectorE and ScalarE: passes over the elements, one element per lane and cycle, max(64, n) cycles each; an
operation on two fp32 operands takes two cycles per element (nki/api/nki/isa, tensor_tensor).
- DMA: weights once per step, less those that stay on chip; keys and values of the contexts and embedding
rows, in pieces of a head's or a row's size; logits.
- Collectives: a fixed time for each exchange, the hops, and the bytes that a rank passes on; the links are
used in turn, not in parallel with arithmetic.
Between the Ops of a Program activations stay on chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from corepipe.neuron.axes import AxisKind
from corepipe.neuron.chips.engines import OpCost
from corepipe.neuron.chips.rates import TILE, CoreRates, Mesh
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS, DType, Format
from corepipe.neuron.values import RowSet, Value, WeightRole, weight_bytes


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes over an Op's elements: `one` and `two` on VectorE, by their number of operands; `scalar` on
    ScalarE."""

    one: int = 0
    two: int = 0
    scalar: int = 0

    def cycles(self, fmt: Format) -> int:
        """Returns the cycles of VectorE per element."""
        return self.one + self.two * (2 if fmt.compute is DType.FP32 else 1)


MESH_BYTES = 1 << 20
"""Payload from which collectives go around a ring: neuron-runtime/explore/intranode-collective-comm.rst."""

GATE = Passes(two=2, scalar=1)  # a gated activation: times the gate, times up; sigmoid


def matrix_cost(
    rows: RowSet, shape: tuple[int, ...], fmt: Format, rates: CoreRates, *, leaves: bool = False
) -> OpCost:
    """Returns the cost of rows times a matrix [n, k]; a pass takes results out of PSUM, and to memory if they
    leave the core.

    fp32 activations that meet narrower weights are converted first, and those that are multiplied in a
    microscaling format are quantised, four elements of a partition a cycle (trainium3_arch.rst, QuantizeMX).
    """
    n, k = shape
    stored = weight_bytes((n, k), WeightRole.MATRIX, fmt) * rates.read_share
    narrowed = fmt.compute is DType.FP32 and fmt.multiplied is not DType.FP32
    casts = k if narrowed or fmt.multiplied is DType.MXFP8 else 0
    row_bytes = n * fmt.compute.bytes if leaves else 0
    return OpCost(
        rows.number,
        tensor=2 * held_elements(n, k, rates) / rates.matmul,
        min_rows=rates.min_rows,
        vector=(0.0, (n + casts) / rates.vector),
        dma=(stored / rates.memory, row_bytes / rates.memory),
        read=(stored, 0.0),
        written=row_bytes,
        flops=2.0 * n * k,
    )


def refuses_matrix(fmt: Format) -> str | None:
    """Returns why no executor multiplies by a matrix in a format (None: they do)."""
    return f"is not computed in {fmt.name}" if fmt.name in TIMED_FORMATS.keys() - FORMATS.keys() else None


def held_elements(n: int, k: int, rates: CoreRates) -> int:
    """Returns the elements of a matrix [n, k] as the array holds it, in whole tiles."""
    if not rates.array:
        return n * k
    return ceil(n / TILE) * TILE * ceil(k / rates.contraction) * rates.contraction


def elementwise_cost(out: Value, passes: Passes, fmt: Format, rates: CoreRates) -> OpCost:
    """Returns the cost of passes over all elements of a result."""
    cycles, width = passes.cycles(fmt), out.width * out.rows.each
    return OpCost(
        out.rows.number,
        vector=(cycles * rates.pass_seconds, cycles * width / rates.vector),
        scalar=(passes.scalar * rates.pass_seconds, passes.scalar * width / rates.scalar),
        start=rates.start,
        split=rates.degree if rates.sequence_parallel and out.axis.kind is AxisKind.HIDDEN else 1,
    )


def passes_beside(rows: RowSet, passes: Passes, width: int, fmt: Format, rates: CoreRates) -> OpCost:
    """Returns the cost of passes over the elements of a step's rows that run in parallel with its
    products."""
    vector, scalar = passes.cycles(fmt) * width, passes.scalar * width
    return OpCost(rows.number, vector=(0.0, vector / rates.vector), scalar=(0.0, scalar / rates.scalar))


def gather_cost(out: Value, fmt: Format, rates: CoreRates) -> OpCost:
    """Returns the cost of reading one row of a table per row."""
    size = out.width * fmt.compute.bytes
    moved = (0.0, size * rates.pieces(size))
    return OpCost(out.rows.number, dma=moved, start=rates.start, read=(0.0, float(size)))


def merged(parts: Sequence[OpCost], rates: CoreRates, read: int = 0, written: int = 0) -> OpCost:
    """Combines products and passes into one Op, which reads and writes so many bytes per row besides
    weights."""
    return OpCost(
        parts[0].rows,
        tensor=sum(p.tensor for p in parts),
        min_rows=rates.min_rows,
        vector=(0.0, sum(p.vector[1] for p in parts)),
        scalar=(0.0, sum(p.scalar[1] for p in parts)),
        dma=(sum(p.dma[0] for p in parts), (read + written) / rates.memory),
        start=rates.start,
        read=(sum(p.read[0] for p in parts), float(read)),
        written=float(written),
        flops=sum(p.flops for p in parts),
    )


def exchanges(count: int, out: Value, fmt: Format, rates: CoreRates, mesh: Mesh) -> OpCost:
    """Returns the cost of `count` exchanges; in each, a rank passes on (degree - 1) / degree of the payload.

    Small payloads go to all ranks at once, large ones from neighbour to neighbour; between the two the steps
    are counted in part.
    """
    payload = out.width * fmt.compute.bytes
    moved = payload * (mesh.degree - 1) / mesh.degree
    return OpCost(
        out.rows.number,
        collectives=(
            count * (mesh.link.seconds + rates.exchange),
            count * moved / mesh.link.bytes_per_second,
        ),
        ring=(count * mesh.ring, payload / MESH_BYTES),
    )
