"""Weights of four bits: their numbers, their distance from the floats, and their products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import assert_near, kernels, run, twin
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BLOCKS, Chunk, Features, build, read_weights, step_inputs

from corepipe.errors import UserError
from corepipe.kernels import packing
from corepipe.neuron.axes import columns, vocabulary
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.host import packed_int4
from corepipe.neuron.host.weights import InMemoryWeights, pack
from corepipe.neuron.numerics import int4
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import Int4, Int8, Stored
from corepipe.neuron.values import WeightRole, WeightSpec
from tests.kernels.linears import random_weights
from tests.reference import arithmetic

FOUR_BITS = FORMATS["int4-weights"]
some = settings(derandomize=True, deadline=None, max_examples=40)


def normal(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def random_int4(kind: packing.Int4Kind, n: int, k: int, seed: int = 0) -> Int4:
    return random_weights(np.random.default_rng(seed), kind, n, k).int4()


@given(st.integers(1, 40), st.integers(1, 130), st.integers(-20, 3), st.integers(0, 99))
@some
def test_what_is_quantised_is_nearer_than_plain_rounding(n: int, k: int, exponent: int, seed: int) -> None:
    """Plain rounding: a group's largest becomes -8, the others the nearest number; no weight is further
    off."""
    weight = normal(n, k, seed) * np.float32(2.0**exponent)
    found = int4.quantize(weight)
    for start in range(0, k, 32):
        part, got = weight[:, start : start + 32], found.dense()[:, start : start + 32]
        largest = np.take_along_axis(part, np.abs(part).argmax(1)[:, None], 1)
        scale = (largest / -8).astype(np.float64)
        plain = np.clip(np.rint(part / scale), -8, 7) * scale
        room = np.abs(largest)[:, 0] * 2.0**-9 + 2.0**-20  # scales are rounded to fp16
        assert (np.linalg.norm(part - got, axis=1) <= np.linalg.norm(part - plain, axis=1) + room).all()


def test_zeros_stay_zeros_and_what_is_too_large_is_refused() -> None:
    weight = normal(3, 70)
    weight[1] = 0
    np.testing.assert_array_equal(int4.quantize(weight).dense()[1], 0)
    weight[2, 5] = 5e5
    spec = WeightSpec("proj.weight", (columns("a", 3), columns("b", 70)), WeightRole.MATRIX)
    with pytest.raises(UserError, match=r"^proj\.weight: weights are too large .*use --dtype int8$"):
        int4.as_stored(spec, FOUR_BITS, weight)


@pytest.mark.parametrize("kind", packing.INT4_KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 200), (33, 64)])
def test_what_numbers_stand_for(kind: packing.Int4Kind, n: int, k: int) -> None:
    weight = random_int4(kind, n, k)
    dense = weight.dense()
    for row, column in np.ndindex(n, k):
        group = column // weight.group
        q, scale = float(weight.values[row, column]), float(weight.scale[row, group])
        offset = 0.0 if weight.offset is None else float(weight.offset[row, group])
        want = {"none": (q - 8) * scale, "zeros": (q + offset) * scale, "minima": q * scale + offset}
        assert dense[row, column] == np.float32(want[weight.offsets])


@pytest.mark.parametrize("kind", packing.INT4_KINDS)
def test_a_product_is_that_of_what_they_stand_for(kind: packing.Int4Kind) -> None:
    weight, x = random_int4(kind, 20, 300), normal(7, 300, 1)
    q, scale = arithmetic.quantize_activations(x, weight.group)
    wide = q * np.repeat(scale.astype(np.float64), weight.group, axis=1)[:, :300]
    got = arithmetic.linear(x, weight, None, FORMATS["fp32"])
    np.testing.assert_allclose(got, wide @ weight.dense().T.astype(np.float64), rtol=2e-6, atol=2e-6)


def test_a_fused_multiply_add_is_rounded_once() -> None:
    """A sum that fp64 would round to a tie of fp32 is rounded as the exact sum."""
    a = np.full((1, 3), 1 + 2.0**-12, np.float32)
    c = np.array([2.0**-60, 0, -(2.0**-60)], np.float32)
    want = 1 + 2.0**-11 + np.array([2.0**-23, 0, 0])
    np.testing.assert_array_equal(arithmetic._fused(a, a, c), want[None].astype(np.float32))
    np.testing.assert_array_equal(arithmetic._fused(-a, a, -c), -want[None].astype(np.float32))
    huge = np.full((1, 1), 3e38, np.float32)
    np.testing.assert_array_equal(arithmetic._fused(huge, huge, -huge), np.float32(np.inf))


@pytest.mark.parametrize("kind", packing.INT4_KINDS)
def test_packing_keeps_them(kind: packing.Int4Kind) -> None:
    for n, k in [(1, 1), (33, 65), (64, 128), (70, 500)]:
        weight = random_int4(kind, n, k)
        packed = packed_int4.pack(weight)
        assert packed.size == packing.packed_bytes(kind, n, k)
        found = packed_int4.unpack(kind, packed, n, k)
        assert (found.group, found.offsets) == (weight.group, weight.offsets)
        for name in ("values", "scale", "offset"):
            np.testing.assert_array_equal(getattr(found, name), getattr(weight, name))


def test_packing_is_as_documented() -> None:
    """Column 20 of panel 1, element 70 of K: the upper bits of byte 4 * 4 + 2 of step 1 of the second 64."""
    weight = random_int4("int4g32m", 64, 128)
    group = packed_int4.pack(weight).reshape(2, 2, 2 * 2 * 32 * 2 + 1024)[1, 1]
    scales = group[:256].view(np.float16).reshape(2, 2, 32)
    assert (scales[0, 0, 20], scales[1, 1, 20]) == (weight.scale[52, 2], weight.offset[52, 3])
    both = group[256:].reshape(16, 16, 4)[1, 4, 2]
    assert (both >> 4, both & 15) == (weight.values[52, 70], weight.values[36, 70])


@pytest.mark.parametrize(
    ("values", "scales", "why"),
    [
        (np.full((2, 64), 16, np.uint8), (2, 2), "numbers are u8 from 0 to 15"),
        (np.zeros((2, 64), np.int8), (2, 2), "numbers are u8"),
        (np.zeros((2, 64), np.uint8), (2, 1), r"cannot pack scales \[\(2, 1\)\]"),
    ],
)
def test_packing_refuses(values: np.ndarray, scales: tuple[int, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        packing.pack_int4("int4g32", packing.Int4Arrays(values, np.ones(scales, np.float16), None))
    with pytest.raises(ValueError, match="2304 bytes, not 7"):
        packing.unpack_int4("int4g32", np.zeros(7, np.uint8), 64, 64)
    with pytest.raises(ValueError, match="cannot pack"):
        packing.pack("int4g32", np.zeros((2, 64), np.float32))


def test_what_no_kernel_has_is_refused() -> None:
    values, scale = np.zeros((2, 64), np.uint8), np.ones((2, 2), np.float16)
    for given_, why in (
        ({"group": 16}, "groups of 16: four-bit weights have groups of 32 or 64"),
        ({"group": 64}, r"scales are \(2, 2\), not \(2, 1\)"),
        ({"offsets": "zeros"}, "offsets are zeros"),
        ({"scale": np.full((2, 2), np.inf, np.float16)}, "scales are not finite"),
    ):
        with pytest.raises(ValueError, match=why):
            Int4(**{"values": values, "scale": scale, **given_})
    with pytest.raises(ValueError, match="no kernel has groups of 128"):
        packing.int4_kind(128, "zeros")


def test_parts_are_those_of_what_they_stand_for() -> None:
    weight = random_int4("int4g32z", 10, 200)
    rows, some_columns = np.array([7, -1, 2]), np.r_[32:96, 160:200]
    part = weight.part(rows, some_columns)
    assert part is not None
    np.testing.assert_array_equal(part.dense()[[0, 2]], weight.dense()[[7, 2]][:, some_columns])
    np.testing.assert_array_equal(part.dense()[1], 0)
    for cut in (np.arange(16, 80), np.r_[0:32, 48:64], np.r_[0:16, 32:64]):
        assert weight.part(rows, cut) is None


def test_columns_that_are_left_out_are_zeros() -> None:
    """Also between other columns: a rank multiplies its padding heads by numbers."""
    rows, columns = np.arange(10), np.r_[0:16, np.full(16, -1), 32:60, np.full(4, -1), np.full(32, -1)]
    points = -(np.arange(30) % 16).astype(np.float16).reshape(10, 3)
    zeros = replace(random_int4("int4g32z", 10, 96), offset=points)
    for weight in (random_int4("int4g32", 10, 96), zeros):
        part = weight.part(rows, columns)
        assert part is not None
        np.testing.assert_array_equal(part.dense(), np.where(columns < 0, 0, weight.dense()[:, columns]))
    for weight in (replace(zeros, offset=points + np.float16(0.5)), random_int4("int4g32m", 10, 96)):
        assert weight.part(rows, columns) is None


@pytest.mark.parametrize("size", [32, 64, 96, 128, 1000])
@pytest.mark.parametrize("zeros", [None, 8, 3])
def test_groups_of_checkpoints_become_groups_of_kernels(size: int, zeros: int | None) -> None:
    """A group of 128 is two of 64 with one scale."""
    rng = np.random.default_rng(size)
    values, groups = rng.integers(0, 16, (6, 300), dtype=np.uint8), -(-300 // size)
    scale = rng.uniform(0.01, 1, (6, groups)).astype(np.float16).astype(np.float32)
    zero = None if zeros is None else np.full((6, groups), zeros, np.float32)
    found = int4.in_groups(values, scale, zero, size)
    assert found is not None
    dense = (values - np.float32(8 if zeros is None else zeros)) * np.repeat(scale, size, axis=1)[:, :300]
    np.testing.assert_array_equal(found.dense(), dense)
    assert found.offsets == ("zeros" if zeros == 3 else "none")


def test_groups_that_kernels_do_not_hold_are_not_made_to_fit() -> None:
    values, ones = np.zeros((2, 64), np.uint8), np.ones((2, 4), np.float32)
    assert int4.in_groups(values, ones, None, 16) is None
    assert int4.in_groups(values, ones[:, :2] * 1e-7, None, 32) is None  # fp16 has only 2 of its digits
    assert int4.in_groups(values, ones[:, :2] * 1e6, None, 32) is None


def test_a_matrix_that_makes_logits_has_eight_bits() -> None:
    weight = normal(64, 96)
    head = WeightSpec("head.weight", (vocabulary(64), columns("x", 96)), WeightRole.MATRIX)
    assert pack(head, FOUR_BITS, weight).kind == "int8"
    proj = replace(head, axes=(columns("y", 64), columns("x", 96)))
    assert pack(proj, FOUR_BITS, weight).kind == "int4g32"
    own = Int8(*quantize_weight(weight))
    assert pack(proj, FOUR_BITS, own).kind == "int8"
    assert pack(head, FOUR_BITS, int4.quantize(weight)).kind == "int4g32"  # as in its file


MIXED: tuple[packing.Int4Kind | None, ...] = ("int4g32m", None, "int4g64z", "int4g32")


def mixed(graph: Graph) -> dict[str, Stored]:
    """Returns matrices of one layer in different formats, as GGUF files mix them: None is int8."""
    read, found = read_weights(graph), {}
    for number, spec in enumerate(graph.weights()):
        weight = read(spec.name)
        kind = MIXED[number % len(MIXED)]
        if spec.role is WeightRole.MATRIX:
            n, k = spec.shape
            weight = Int8(*quantize_weight(weight)) if kind is None else random_int4(kind, n, k, number)
        found[spec.name] = weight
    return found


@pytest.mark.parametrize("placement", [Placement(), Placement(pipeline=2), Placement(tensor=2)])
def test_matrices_of_a_layer_may_differ_in_grids(pool: Any, placement: Placement) -> None:
    graph = build(Features(layers=2), "int4-weights")
    weights, inputs = mixed(graph), step_inputs(graph, [Chunk(0, 0, 9), Chunk(3, 0, 4)])
    read, memory = weights.__getitem__, InMemoryWeights(graph, weights.__getitem__)
    kinds = {memory[spec.name].kind for spec in graph.weights() if spec.role is WeightRole.MATRIX}
    assert kinds >= {"int8", "int4g32m", "int4g64z", "int4g32"}
    got = run(kernels(graph, read, pool, placement, blocks=BLOCKS, rows=64), inputs)
    assert_near(got, twin(graph, read, placement, blocks=BLOCKS).values(inputs), "int4-weights")


def test_a_device_is_taken_to_hold_what_is_computed() -> None:
    assert (FOUR_BITS.held, FOUR_BITS.multiplied) == (DType.BF16, DType.BF16)
