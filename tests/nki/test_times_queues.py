"""Queues of engines: dependences against a count of every element, extrapolated loops against whole ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine, Event, Instruction, LoopKind
from corepipe.nki.core.recorder import Recorder, recording
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.isa.tensor import nc_matmul
from corepipe.nki.isa.transfers import dma_copy
from corepipe.nki.isa.vector import tensor_copy, tensor_scalar, tensor_tensor
from corepipe.nki.timing.compiled import compiled, place_of
from corepipe.nki.timing.constants import DOCUMENTED, shipped
from corepipe.nki.timing.costs import Costs
from corepipe.nki.timing.queues import Queues
from corepipe.nki.timing.queues_memory import Buffers
from corepipe.nki.timing.timed import simulated as simulated_by
from corepipe.nki.timing.timed import timed

AFFINE = LoopKind.AFFINE


def simulated(
    stream: list[Event], copies: dict[object, int] | None = None, *, reorders: bool = True
) -> Queues:
    read = [r.buffer for e in stream if isinstance(e, Instruction) for r in e.reads]
    queues = Queues(Costs("v2", DOCUMENTED["v2"]), Buffers(copies or {}, read), reorders=reorders)
    queues.run(stream)
    return queues


# Dependences


def random_stream(seed: int) -> list[Event]:
    """Returns instructions on random parts of a few tensors, in blocks and not."""
    draw = random.Random(seed)
    recorder = Recorder("v2", legacy=True, values=False)
    tensors = [recorder.allocate(Space.SBUF, (3, 128, 64), np.float32, name="b", blocks=1) for _ in range(2)]
    flat = [recorder.allocate(Space.SBUF, (128, 96), np.float32, name="f") for _ in range(2)]
    outside = recorder.allocate(Space.HBM, (128, 96), np.float32)

    def part(width: int) -> View:
        if draw.random() < 0.5:
            base = whole(draw.choice(tensors))[draw.randrange(3)]
        else:
            base = whole(draw.choice(flat))
        start = draw.randrange(base.shape[1] - width + 1)
        return base[:, start : start + width]

    with recording(recorder):
        for _ in range(120):
            width = draw.choice([1, 8, 33, 64])
            match draw.randrange(4):
                case 0:
                    tensor_tensor(part(width), part(width), part(width), "add")
                case 1:
                    tensor_scalar(part(width), part(width), "multiply", 2.0, engine=Engine.SCALAR)
                case 2:
                    dma_copy(part(width), whole(outside)[:, :width])
                case _:
                    dma_copy(whole(outside)[:, :width], part(width))
    return recorder.stream


class Elements:
    """The times at which each element was written and read last, by brute force."""

    def __init__(self) -> None:
        self.written: dict[int, np.ndarray] = {}
        self.read: dict[int, np.ndarray] = {}

    def of(self, table: dict[int, np.ndarray], region: object) -> np.ndarray:
        times = table.setdefault(id(region.buffer), np.zeros(region.buffer.shape))
        return times[tuple(slice(a, b) for a, b in region.box)]


@pytest.mark.parametrize("reorders", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_instruction_starts_before_its_elements_are_there(seed: int, reorders: bool) -> None:
    """An operand is there when its writer leaves; what is read may be overwritten when its readers left."""
    stream, elements = random_stream(seed), Elements()
    queues = simulated(stream, reorders=reorders)
    instructions = [e for e in stream if isinstance(e, Instruction)]
    assert len(instructions) == len(queues.spans)
    for instruction, span in zip(instructions, queues.spans, strict=True):
        for region in instruction.reads:
            if region.buffer.space is Space.SBUF:
                assert span.start >= elements.of(elements.written, region).max() - 1e-12
        for region in instruction.writes:
            if region.buffer.space is Space.SBUF:
                assert span.start >= elements.of(elements.read, region).max() - 1e-12
                assert span.start >= elements.of(elements.written, region).max() - 1e-12
        for region in instruction.reads:
            np.maximum(found := elements.of(elements.read, region), span.end, out=found)
        for region in instruction.writes:
            np.maximum(found := elements.of(elements.written, region), span.end, out=found)


@pytest.mark.parametrize("seed", range(6))
def test_no_engine_executes_two_instructions_at_a_time(seed: int) -> None:
    spans = simulated(random_stream(seed)).spans
    for engine in (Engine.VECTOR, Engine.SCALAR):
        own = sorted((s for s in spans if s.engine is engine), key=lambda s: s.start)
        assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(own))


@pytest.mark.parametrize("seed", range(6))
def test_transfers_get_no_more_than_all_dma_engines(seed: int) -> None:
    queues = simulated(random_stream(seed))
    busy = queues.sums.values["busy", Engine.DMA] * 1e-9
    own = [s for s in queues.spans if s.engine is Engine.DMA]
    assert max(s.end for s in own) - min(s.start for s in own) >= busy * 0.999


def test_without_reordering_an_engine_keeps_the_order_of_the_kernel() -> None:
    for seed in range(4):
        spans = simulated(random_stream(seed), reorders=False).spans
        for engine in (Engine.VECTOR, Engine.SCALAR):
            starts = [s.start for s in spans if s.engine is engine]
            assert starts == sorted(starts)


def test_a_queue_that_may_reorder_is_no_slower() -> None:
    recorder = Recorder("v2", legacy=True, values=False)
    with recording(recorder):
        elementwise(recorder, 20)
    assert simulated(recorder.stream).seconds <= simulated(recorder.stream, reorders=False).seconds * 1.001


def test_the_engine_that_ends_first_is_chosen() -> None:
    """VectorE has much to do: copies from PSUM go to ScalarE."""
    recorder = Recorder("v2", legacy=True, values=False)
    tile = [whole(recorder.allocate(Space.SBUF, (128, 512), np.float32)) for _ in range(2)]
    product = whole(recorder.allocate(Space.PSUM, (128, 512), np.float32))
    with recording(recorder):
        for _ in range(4):
            tensor_tensor(tile[0], tile[1], tile[1], "add")
        copy = tensor_copy(tile[1], product)
    assert Engine.GPSIMD not in copy.engines
    assert simulated(recorder.stream).spans[-1].engine is Engine.SCALAR


# Buffers that are used in turn


def copied(recorder: Recorder, turns: int) -> None:
    """Loads, doubles and stores tiles of buffers that each turn allocates."""
    source = whole(recorder.give("x", np.zeros((128 * turns, 2048), np.float32)))
    target = whole(recorder.allocate(Space.HBM, (128 * turns, 2048), np.float32))
    for i in recorder.loop(AFFINE, range(turns)):
        tile = whole(recorder.allocate(Space.SBUF, (128, 2048), np.float32, name="in"))
        dma_copy(tile, source[128 * i : 128 * i + 128])
        result = whole(recorder.allocate(Space.SBUF, (128, 2048), np.float32, name="out"))
        tensor_scalar(result, tile, "maximum", 0.0)
        dma_copy(target[128 * i : 128 * i + 128], result)


def elementwise(recorder: Recorder, turns: int) -> None:
    """Two tiles, four operations in a row, and a sum over all turns."""
    source = whole(recorder.give("x", np.zeros((128 * turns, 1024), np.float32)))
    total = whole(recorder.allocate(Space.SBUF, (128, 1024), np.float32, name="total"))
    for i in recorder.loop(AFFINE, range(turns)):
        tiles = [
            whole(recorder.allocate(Space.SBUF, (128, 1024), np.float32, name=f"t{n}")) for n in range(3)
        ]
        dma_copy(tiles[0], source[128 * i : 128 * i + 128])
        tensor_scalar(tiles[1], tiles[0], "multiply", 2.0)
        tensor_tensor(tiles[2], tiles[1], tiles[0], "multiply")
        tensor_tensor(total, total, tiles[2], "add")
        tensor_scalar(total, total, "maximum", 0.0)


def matmul(recorder: Recorder, blocks: int) -> None:
    """A tiled product: operands in blocks, sums in PSUM, results copied and stored."""
    size = 128 * blocks
    left = whole(recorder.give("lhsT", np.zeros((size, size), np.float32)))
    right = whole(recorder.give("rhs", np.zeros((size, 2048), np.float32)))
    out = whole(recorder.allocate(Space.HBM, (size, 2048), np.float32))
    for m in recorder.loop(AFFINE, range(blocks)):
        a = whole(recorder.allocate(Space.SBUF, (blocks, 128, 128), np.float32, name="a", blocks=1))
        for k in recorder.loop(AFFINE, range(blocks)):
            dma_copy(a[k], left[128 * k : 128 * k + 128, 128 * m : 128 * m + 128])
        for n in recorder.loop(AFFINE, range(4)):
            b = whole(recorder.allocate(Space.SBUF, (blocks, 128, 512), np.float32, name="b", blocks=1))
            for k in recorder.loop(AFFINE, range(blocks)):
                dma_copy(b[k], right[128 * k : 128 * k + 128, 512 * n : 512 * n + 512])
            product = whole(recorder.allocate(Space.PSUM, (128, 512), np.float32, name="p"))
            for k in recorder.loop(AFFINE, range(blocks)):
                nc_matmul(product, a[k], b[k], accumulate=k > 0)
            result = whole(recorder.allocate(Space.SBUF, (128, 512), np.float32, name="r"))
            tensor_copy(result, product)
            dma_copy(out[128 * m : 128 * m + 128, 512 * n : 512 * n + 512], result)


def carried(recorder: Recorder, turns: int) -> None:
    """A state that every turn needs from the one before, through two engines."""
    state = whole(recorder.allocate(Space.SBUF, (128, 256), np.float32, name="state"))
    other = whole(recorder.allocate(Space.SBUF, (128, 256), np.float32, name="other"))
    for _ in recorder.loop(LoopKind.SEQUENTIAL, range(turns)):
        tensor_tensor(other, state, state, "add")
        tensor_scalar(state, other, "multiply", 0.5, engine=Engine.SCALAR)


def alternating(recorder: Recorder, turns: int) -> None:
    """Turns of two kinds, one after the other."""
    wide = whole(recorder.allocate(Space.SBUF, (128, 2048), np.float32, name="wide"))
    for i in recorder.loop(AFFINE, range(turns)):
        width = 2048 if i % 2 else 64
        tensor_tensor(wide[:, :width], wide[:, :width], wide[:, :width], "add")


KERNELS: dict[str, tuple[Callable[[Recorder, int], None], int]] = {
    "copied": (copied, 40),
    "elementwise": (elementwise, 64),
    "matmul": (matmul, 24),
    "carried": (carried, 200),
    "alternating": (alternating, 51),
}


def recorded(name: str, *, every_turn: bool) -> Recorder:
    kernel, size = KERNELS[name]
    recorder = Recorder("v2", legacy=True, values=False, whole=every_turn)
    with recording(recorder):
        kernel(recorder, size)
    return recorder


def found(name: str, copies: int, *, every_turn: bool, reorders: bool) -> Queues:
    recorder = recorded(name, every_turn=every_turn)
    blocks = {
        place_of(b): copies * int(np.prod(b.shape[: b.blocks]))
        for b in recorder.buffers
        if b.space is not Space.HBM
    }
    return simulated(recorder.stream, blocks, reorders=reorders)


@pytest.mark.parametrize("reorders", [False, True])
@pytest.mark.parametrize("copies", [1, 2, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_extrapolated_loops_take_as_long_as_whole_ones(name: str, copies: int, reorders: bool) -> None:
    """Time within 1 %; instructions, bytes and the work of each engine and line exactly."""
    short = found(name, copies, every_turn=False, reorders=reorders)
    full = found(name, copies, every_turn=True, reorders=reorders)
    assert len(short.spans) < len(full.spans) / 3
    assert short.seconds == pytest.approx(full.seconds, rel=0.01)
    assert set(short.sums.values) == set(full.sums.values)
    for key, value in full.sums.values.items():
        if not (isinstance(key, tuple) and key[0] == "wait"):
            assert short.sums.values[key] == pytest.approx(value, rel=1e-6), key


def test_more_buffers_let_loads_run_ahead() -> None:
    one, two = (found("copied", n, every_turn=True, reorders=True) for n in (1, 2))
    assert two.seconds < 0.8 * one.seconds


def test_a_new_block_waits_for_the_one_whose_memory_it_takes() -> None:
    recorder = recorded("copied", every_turn=True)
    copies = {place_of(b): 2 for b in recorder.buffers if b.space is Space.SBUF}
    spans = simulated(recorder.stream, copies).spans
    loads, doubled = spans[0::3], spans[1::3]
    for turn in range(2, len(loads)):
        assert loads[turn].start >= doubled[turn - 2].end


def test_operands_of_turns_that_were_left_out_count_as_written() -> None:
    """A loop of 32 turns writes the blocks, of which the stream has five; block 10 is read after it."""
    recorder = Recorder("v2", legacy=True, values=False)
    source = whole(recorder.give("x", np.zeros((128, 512), np.float32)))
    blocks = whole(recorder.allocate(Space.SBUF, (32, 128, 512), np.float32, blocks=1))
    result = whole(recorder.allocate(Space.SBUF, (128, 512), np.float32))
    with recording(recorder):
        for i in recorder.loop(AFFINE, range(32)):
            dma_copy(blocks[i], source)
        tensor_tensor(result, blocks[10], blocks[10], "add")
    spans = simulated(recorder.stream).spans
    loads = [s for s in spans if s.engine is Engine.DMA]
    assert spans[-1].start >= loads[-1].end


def crowd(recorder: Recorder, turns: int) -> None:
    """Tiles of 64 KiB a partition, of which SBUF holds two at a time, but not the three of a turn."""
    shape = (128, 16384)
    source = whole(recorder.give("x", np.zeros((turns, *shape), np.float32)))
    target = whole(recorder.allocate(Space.HBM, (turns, *shape), np.float32))
    for i in recorder.loop(AFFINE, range(turns)):
        tiles = [whole(recorder.allocate(Space.SBUF, shape, np.float32, name=f"t{n}")) for n in range(3)]
        dma_copy(tiles[0], source[i])
        for one, other in itertools.pairwise(tiles):
            tensor_scalar(other, one, "maximum", 0.0)
        dma_copy(target[i], tiles[-1])


def crowded_times(turns: int, *, every_turn: bool) -> tuple[float, float]:
    """Returns seconds, and those of a core with memory for all tiles."""
    recorder = Recorder("v2", legacy=True, values=False, whole=every_turn)
    with recording(recorder):
        crowd(recorder, turns)
    made = compiled(recorder)
    roomy = replace(made, memory=replace(made.memory, sbuf_limit=1 << 30))
    one, other = (simulated_by(found, recorder, shipped()["v2"]).seconds for found in (made, roomy))
    return one, other


def test_tensors_that_do_not_fit_beside_one_another_wait_for_memory() -> None:
    seconds, roomy = crowded_times(10, every_turn=True)
    assert seconds > roomy


def test_extrapolated_loops_share_memory_as_whole_ones_do() -> None:
    short, full = (crowded_times(40, every_turn=every) for every in (False, True))
    assert short == pytest.approx(full, rel=0.01)


def test_a_recorded_kernel_compiles_and_is_timed() -> None:
    recorder = recorded("matmul", every_turn=False)
    times = timed(recorder)
    assert times.low < times.seconds < times.high
    assert times.bound == "dma" or times.bound.startswith("waits")
    assert times.engines[Engine.TENSOR].instructions == 24 * 4 * 24
    assert times.traffic.written == 24 * 4 * 128 * 512 * 4
    lines = {site.line for site in times.lines}
    assert sum(times.lines.values()) == pytest.approx(sum(e.busy for e in times.engines.values()))
    assert len(lines) >= 4
