"""Compiled kernels: bytes that they move and memory that they take, against counts by hand and against
runs that leave no turn out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.instructions import Engine, Instruction, LoopBegin, LoopKind
from corepipe.nki.core.recorder import Recorder, recording
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.isa.tensor import nc_matmul
from corepipe.nki.isa.transfers import dma_copy
from corepipe.nki.isa.vector import memset, tensor_copy, tensor_scalar, tensor_tensor
from corepipe.nki.timing.compiled import Compiled, compiled, place_of
from corepipe.nki.timing.profile import MOVED_TRANSPOSES, PROFILES, CompilerRule

KIB = 1 << 10
TILE = 128 * 512 * 4
"""Bytes of a tile of 128 partitions of 2 KiB."""


@dataclass
class Kernel:
    """A kernel that is being recorded, in tiles of [128, 512] of fp32."""

    recorder: Recorder
    places: dict[str, Buffer] = field(default_factory=dict)

    def input(self, rows: int, name: str = "input") -> View:
        return whole(self.recorder.give(name, np.broadcast_to(np.float32(0), (rows, 128, 512))))

    def output(self, rows: int) -> View:
        return whole(self.recorder.allocate(Space.HBM, (rows, 128, 512), np.float32))

    def tiles(self, *blocks: int, space: Space = Space.SBUF, name: str = "") -> View:
        """Returns a tensor of tiles."""
        shape = (*blocks, 128, 512)
        return whole(self.recorder.allocate(space, shape, np.float32, name=name, blocks=len(blocks)))

    def loop(self, count: int, kind: LoopKind = LoopKind.AFFINE) -> object:
        return self.recorder.loop(kind, range(count))


def run(
    kernel: Callable[[Kernel], None],
    *,
    whole_: bool = False,
    legacy: bool = True,
    rules: Sequence[CompilerRule] | None = None,
) -> Compiled:
    recorder = Recorder("v2", legacy=legacy, values=False, whole=whole_)
    with recording(recorder):
        kernel(Kernel(recorder))
    return compiled(recorder, rules)


def instructions(found: Compiled, op: str = "") -> list[Instruction]:
    return [e for e in found.stream if isinstance(e, Instruction) and op in {"", e.op}]


# Kernels


def copied(k: Kernel) -> None:
    """Copies 40 tiles."""
    source, target = k.input(40), k.output(40)
    for i in k.loop(40):
        tile = k.tiles()
        dma_copy(tile, source[i])
        dma_copy(target[i], tile)


def scaled(rows: int, turns: int) -> Callable[[Kernel], None]:
    """Adds the same rows to other rows in each turn; the rows are loaded in the loop, as AccelOpt's
    matmul_add_rmsnorm loads its weights."""

    def kernel(k: Kernel) -> None:
        x, w, target = k.input(turns), k.input(rows, "weights"), k.output(turns)
        for i in k.loop(turns):
            tile = k.tiles()
            dma_copy(tile, x[i])
            for n in k.loop(rows):
                weights = k.tiles()
                dma_copy(weights, w[n])
                tensor_tensor(tile, tile, weights, "add")
            dma_copy(target[i], tile)

    return kernel


def held(rows: int, turns: int, others: int) -> Callable[[Kernel], None]:
    """Loads rows before a loop of which each turn uses all, beside other tiles, as AccelOpt's matmul."""

    def kernel(k: Kernel) -> None:
        x, w, target = k.input(turns * others), k.input(rows, "weights"), k.output(turns)
        weights = k.tiles(rows, name="weights")
        for n in k.loop(rows):
            dma_copy(weights[n], w[n])
        for i in k.loop(turns):
            block, out = k.tiles(others), k.tiles()
            for j in k.loop(others):
                dma_copy(block[j], x[i * others + j])
            for n in k.loop(rows):
                tensor_tensor(out, block[n % others], weights[n], "add")
            dma_copy(target[i], out)

    return kernel


def kept(rows: int) -> Callable[[Kernel], None]:
    """Computes rows, and then uses each once, as AccelOpt's bmm_softmax does with scores."""

    def kernel(k: Kernel) -> None:
        x, target = k.input(rows), k.output(rows)
        scores = k.tiles(rows, name="scores")
        for i in k.loop(rows):
            tile = k.tiles()
            dma_copy(tile, x[i])
            tensor_scalar(scores[i], tile, "multiply", 2.0, engine=Engine.VECTOR)
        for i in k.loop(rows):
            out = k.tiles()
            tensor_scalar(out, scores[i], "multiply", 2.0, engine=Engine.VECTOR)
            dma_copy(target[i], out)

    return kernel


def accumulated(rows: int, turns: int) -> Callable[[Kernel], None]:
    """Adds to all rows in each turn, as AccelOpt's lora."""

    def kernel(k: Kernel) -> None:
        x, target = k.input(turns), k.output(rows)
        sums = k.tiles(rows, name="sums")
        for n in range(rows):
            memset(sums[n], 0.0)
        for i in k.loop(turns, LoopKind.SEQUENTIAL):
            tile = k.tiles()
            dma_copy(tile, x[i])
            for n in k.loop(rows):
                tensor_tensor(sums[n], sums[n], tile, "add")
        for n in k.loop(rows):
            dma_copy(target[n], sums[n])

    return kernel


def nested(rows: int, turns: int) -> Callable[[Kernel], None]:
    """Adds the same rows to sums in each turn, as the tutorial's mamba_v1: the rows take the sums' memory."""

    def kernel(k: Kernel) -> None:
        x, target = k.input(rows), k.output(rows)
        sums = k.tiles(rows, name="sums")
        for n in k.loop(rows):
            memset(sums[n], 0.0)
        for _ in k.loop(turns):
            for n in k.loop(rows):
                tile = k.tiles()
                dma_copy(tile, x[n])
                tensor_tensor(sums[n], sums[n], tile, "add")
        for n in k.loop(rows):
            dma_copy(target[n], sums[n])

    return kernel


def twice(turns: int, ahead: int = 0) -> Callable[[Kernel], None]:
    """Loads the same tiles in two loops, as AccelOpt's swiglu; a turn of the second adds what the first made
    of its tile, or of one that is some turns `ahead`."""

    def kernel(k: Kernel) -> None:
        x, w, target = k.input(turns), k.input(1, "weights"), k.output(turns)
        made = k.tiles(turns, name="made")
        for i in k.loop(turns):
            tile = k.tiles()
            dma_copy(tile, x[i])
            tensor_scalar(made[i], tile, "multiply", 2.0, engine=Engine.VECTOR)
        weights = k.tiles()
        dma_copy(weights, w[0])
        for i in k.loop(turns):
            tile, out = k.tiles(), k.tiles()
            dma_copy(tile, x[i])
            tensor_tensor(out, tile, made[(i + ahead) % turns], "add")
            tensor_tensor(out, out, weights, "add")
            dma_copy(target[i], out)

    return kernel


def halved(k: Kernel) -> None:
    """Adds to tiles half of them, as AccelOpt's adamw."""
    x, target = k.input(40), k.output(40)
    for i in k.loop(40):
        tile, half, total = k.tiles(), k.tiles(), k.tiles()
        dma_copy(tile, x[i])
        tensor_scalar(half, tile, "multiply", 0.5, engine=Engine.VECTOR)
        tensor_tensor(total, tile, half, "add")
        dma_copy(target[i], total)


def repeated(turns: int, *, varied: bool = False) -> Callable[[Kernel], None]:
    """Multiplies two tiles anew in each turn, as mamba_v2 for each state; `varied`: one of them changes."""

    def kernel(k: Kernel) -> None:
        x, target = k.input(2), k.output(turns)
        left, right = k.tiles(), k.tiles()
        dma_copy(left, x[0])
        dma_copy(right, x[1])
        for i in k.loop(turns):
            product, result = k.tiles(), k.tiles()
            tensor_tensor(product, left, right, "multiply")
            tensor_scalar(result, product, "maximum", 0.0)
            if varied:
                tensor_scalar(left, left, "multiply", 0.5)
            dma_copy(target[i], result)

    return kernel


# Traffic


def test_transfers_as_written() -> None:
    found = run(copied)
    assert (found.traffic.read, found.traffic.written) == (40 * TILE, 40 * TILE)
    assert found.traffic.spilled == found.traffic.reloaded == 0


@pytest.mark.parametrize("rows", [8, 40])
def test_loads_that_a_loop_repeats_are_moved_out_of_it_if_they_fit(rows: int) -> None:
    found = run(scaled(rows, 20))
    assert found.traffic.read == (20 + rows) * TILE


def test_loads_stay_in_the_loop_if_they_do_not_fit() -> None:
    assert run(scaled(90, 20)).traffic.read == (20 + 20 * 90) * TILE


def test_the_current_dialect_loads_as_it_is_written() -> None:
    assert run(scaled(8, 20), legacy=False).traffic.read == (20 + 20 * 8) * TILE


def test_a_source_that_the_kernel_writes_is_loaded_again() -> None:
    def kernel(k: Kernel) -> None:
        x, state = k.input(20), k.output(1)
        for i in k.loop(20):
            tile, other = k.tiles(), k.tiles()
            dma_copy(tile, x[i])
            dma_copy(other, state[0])
            tensor_tensor(tile, tile, other, "add")
            dma_copy(state[0], tile)

    assert run(kernel).traffic.read == 40 * TILE


def test_a_block_that_is_changed_after_its_load_is_loaded_again() -> None:
    def kernel(k: Kernel) -> None:
        w, target = k.input(1), k.output(20)
        for i in k.loop(20):
            tile = k.tiles()
            dma_copy(tile, w[0])
            tensor_scalar(tile, tile, "multiply", 2.0, engine=Engine.VECTOR)
            dma_copy(target[i], tile)

    assert run(kernel).traffic.read == 20 * TILE


def test_a_large_tensor_that_does_not_fit_is_loaded_again_in_every_turn() -> None:
    """160 KiB and 20 more of 176."""
    found = run(held(80, 20, 10))
    assert found.traffic.read == (200 + 20 * 80) * TILE
    assert found.traffic.spilled == 0


def test_a_large_tensor_that_fits_is_loaded_once() -> None:
    assert run(held(70, 20, 10)).traffic.read == (200 + 70) * TILE


def test_what_is_alive_beyond_the_memory_is_saved_and_comes_back_once() -> None:
    found = run(kept(150))
    beyond = 150 - 88
    assert abs(found.traffic.spilled / TILE - beyond) <= 4
    assert found.traffic.spilled == found.traffic.reloaded
    assert found.traffic.read == 150 * TILE + found.traffic.reloaded
    assert found.traffic.written == 150 * TILE + found.traffic.spilled


def test_nothing_is_spilled_that_fits() -> None:
    assert run(kept(84)).traffic.spilled == 0


def test_sums_that_do_not_fit_are_saved_in_every_turn() -> None:
    found = run(accumulated(90, 20))
    assert found.traffic.spilled / TILE == pytest.approx(20 * 90, rel=0.02)
    assert found.traffic.reloaded / TILE == pytest.approx(20 * 90, rel=0.02)


def test_inserted_transfers_name_the_line_that_needs_them() -> None:
    found = run(kept(150))
    saved = [i for i in instructions(found, "dma_copy") if i.details.get("kind") == "spilled"]
    back = [i for i in instructions(found, "dma_copy") if i.details.get("kind") == "reloaded"]
    definitions = {i.site for i in instructions(found, "tensor_scalar")}
    assert saved
    assert back
    assert {i.site for i in (*saved, *back)} <= definitions
    assert {i.site for i in saved}.isdisjoint(i.site for i in back)


def test_current_kernels_fail_where_they_need_more_memory() -> None:
    with pytest.raises(KernelError, match="bytes of SBUF are alive") as caught:
        run(kept(150), legacy=False)
    assert caught.value.rule == "capacity"


# Turns that are left out


KERNELS = [copied, scaled(8, 20), scaled(30, 20), scaled(90, 20), held(80, 20, 10), held(70, 40, 10)]
KERNELS += [
    nested(48, 20),
    twice(40),
    twice(40, 1),
    kept(60),
    kept(150),
    accumulated(90, 20),
    accumulated(20, 60),
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_long_loops_have_the_traffic_and_memory_of_all_their_turns(kernel: Callable[[Kernel], None]) -> None:
    """A few blocks differ: what one block of a turn before a gap stands for is spilled in part."""
    sampled, every = run(kernel), run(kernel, whole_=True)
    assert len(sampled.stream) < len(every.stream)
    for name in ("read", "written", "spilled", "reloaded"):
        assert getattr(sampled.traffic, name) == pytest.approx(getattr(every.traffic, name), rel=0.12), name
    assert sampled.memory.sbuf == pytest.approx(every.memory.sbuf, abs=4 * KIB)
    assert sampled.memory.psum == every.memory.psum


# Memory


def test_the_peak_names_its_line_and_the_largest_tensors() -> None:
    found = run(kept(60))
    assert found.memory.sbuf == 61 * 2 * KIB
    assert found.memory.sbuf_peak is not None
    largest, size = found.memory.sbuf_peak.largest[0]
    assert (largest.name, size) == ("scores", 60 * 2 * KIB)
    assert found.memory.sbuf_peak.site in {i.site for i in instructions(found)}


def test_results_that_the_next_instruction_adds_are_placed_in_psum() -> None:
    for legacy, space in ((True, Space.PSUM), (False, Space.SBUF)):
        found = run(halved, legacy=legacy)
        for adding in instructions(found, "tensor_tensor"):
            assert {r.buffer.space for r in adding.reads} == {Space.SBUF, space}
            assert Engine.GPSIMD not in adding.engines or not legacy


def test_a_result_with_two_readers_stays_in_sbuf() -> None:
    def kernel(k: Kernel) -> None:
        x, target = k.input(1), k.output(1)
        tile, half, total = k.tiles(), k.tiles(), k.tiles()
        dma_copy(tile, x[0])
        tensor_scalar(half, tile, "multiply", 0.5, engine=Engine.VECTOR)
        tensor_tensor(total, tile, half, "add")
        tensor_tensor(total, total, half, "add")
        dma_copy(target[0], total)

    assert all(r.buffer.space is not Space.PSUM for i in instructions(run(kernel)) for r in i.reads)


def test_fresh_tiles_exist_several_times_as_memory_allows() -> None:
    def kernel(k: Kernel) -> None:
        x, target = k.input(40), k.output(40)
        for i in k.loop(40):
            tile, product = k.tiles(name="tile"), k.tiles(space=Space.PSUM, name="product")
            out = k.tiles(name="out")
            dma_copy(tile, x[i])
            nc_matmul(product, tile[:, :128], tile)
            tensor_copy(out, product)
            dma_copy(target[i], out)

    found = run(kernel)
    copies = {
        place_of(r.buffer)[-1]: found.copies[place_of(r.buffer)]
        for i in instructions(found)
        for r in i.writes
        if r.buffer.space is not Space.HBM
    }
    assert copies["product"] == 8
    assert copies["tile"] >= 2
    assert copies["out"] >= 2


def test_blocks_that_are_alive_together_all_exist() -> None:
    found = run(held(70, 20, 10), whole_=True)
    copies = {place[-1]: n for place, n in found.copies.items()}
    assert copies["weights"] >= 70


# Rules


def transposed(blocks: int, turns: int) -> Callable[[Kernel], None]:
    """Transposes what each turn loads again, as AccelOpt's bmm."""

    def kernel(k: Kernel) -> None:
        x, unit, target = k.input(blocks), k.input(1, "identity"), k.output(turns)
        identity = k.tiles(name="identity")
        dma_copy(identity, unit[0])
        for i in k.loop(turns):
            turned, out = k.tiles(blocks, name="turned"), k.tiles(name="out")
            for n in k.loop(blocks):
                tile, held = k.tiles(), k.tiles(space=Space.PSUM)
                dma_copy(tile, x[n])
                for part in range(4):
                    columns = slice(128 * part, 128 * part + 128)
                    nc_matmul(held[:, columns], tile[:, columns], identity[:, :128], is_transpose=True)
                tensor_copy(turned[n], held)
            for n in k.loop(blocks):
                tensor_tensor(out, turned[n], turned[n], "add")
            dma_copy(target[i], out)

    return kernel


def transposes(found: Compiled) -> int:
    return sum(bool(i.details.get("is_transpose")) for i in instructions(found))


def test_transposes_move_with_the_loads_that_bring_their_operands() -> None:
    """Counted in AccelOpt's bmm: each tile is transposed once."""
    found = run(transposed(4, 6), whole_=True)
    assert found.traffic.read == (4 + 1) * TILE
    assert transposes(found) == 4 * 4
    without = [rule for rule in PROFILES[True] if rule is not MOVED_TRANSPOSES]
    kept_in_place = run(transposed(4, 6), whole_=True, rules=without)
    assert kept_in_place.traffic.read == (4 + 1) * TILE
    assert transposes(kept_in_place) == 6 * 4 * 4


def test_transposes_stay_in_the_loop_if_their_results_do_not_fit() -> None:
    found = run(transposed(90, 6), whole_=True)
    assert transposes(found) == 6 * 4 * 90


@pytest.mark.parametrize("turns", [8, 40])
def test_loops_that_load_the_same_are_fused(turns: int) -> None:
    found = run(twice(turns), whole_=True)
    assert found.traffic.read == (turns + 1) * TILE
    assert found.traffic.written == turns * TILE
    assert len([e for e in found.stream if isinstance(e, LoopBegin)]) == 1
    made = [i for i in instructions(found) if i.op in {"tensor_scalar", "tensor_tensor"}]
    assert [i.op for i in made] == ["tensor_scalar", "tensor_tensor", "tensor_tensor"] * turns


def test_loops_whose_turns_need_others_are_not_fused() -> None:
    assert run(twice(8, 1)).traffic.read == (2 * 8 + 1) * TILE


@pytest.mark.parametrize("turns", [6, 40])
def test_results_that_a_loop_repeats_are_computed_once(turns: int) -> None:
    found = run(repeated(turns))
    (product,) = instructions(found, "tensor_tensor")
    for reader in instructions(found, "tensor_scalar"):
        assert reader.reads[0].buffer is product.writes[0].buffer
    assert len(instructions(run(repeated(turns), legacy=False), "tensor_tensor")) > 1


def test_results_whose_operands_change_are_computed_again() -> None:
    assert len(instructions(run(repeated(6, varied=True)), "tensor_tensor")) == 6


@pytest.mark.parametrize("rule", PROFILES[True], ids=lambda rule: rule.name)
def test_each_rule_changes_something(rule: CompilerRule) -> None:
    """Compares bytes, instructions and numbers of blocks with and without it."""
    without = [other for other in PROFILES[True] if other is not rule]
    kernels = [scaled(8, 20), transposed(4, 6), held(80, 20, 10), kept(150), halved, twice(8), repeated(6)]
    differences = 0
    for kernel in kernels:
        found, other = run(kernel), run(kernel, rules=without)
        same = [i.writes[0].buffer.space for i in instructions(found)] == [
            i.writes[0].buffer.space for i in instructions(other)
        ]
        same &= len(instructions(found)) == len(instructions(other))
        differences += found.traffic != other.traffic or found.copies != other.copies or not same
    assert differences
    assert rule.source


def test_the_number_of_blocks_that_a_kernel_gives_is_kept() -> None:
    def kernel(k: Kernel) -> None:
        x, target = k.input(8), k.output(8)
        tile = k.tiles(8, name="given")
        tile.buffer.address, tile.buffer.existing = 0, 2
        for i in k.loop(8):
            dma_copy(tile[i], x[i])
            dma_copy(target[i], tile[i])

    found = run(kernel)
    assert {place[-1]: n for place, n in found.copies.items()} == {"given": 2}


def test_the_decision_lists_the_rules() -> None:
    page = Path("docs/decisions/2026-11-28-nki-compiler-rules.md").read_text(encoding="utf-8")
    for rules in PROFILES.values():
        for rule in rules:
            assert f"| `{rule.name}` |" in page, rule.name
            assert all(kernel in page for kernel in rule.explains), rule.name
