"""Every kind on every ISA equals numpy, and the contract holds: a row's bits depend on that row alone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from corepipe.kernels import native, packing
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host import packed_int4
from tests.kernels import linears
from tests.kernels.harness import elsewhere
from tests.kernels.linears import Case, Weights, random_weights, round_bf16
from tests.reference import arithmetic

KINDS: tuple[packing.Kind, ...] = (*packing.DENSE_KINDS, *packing.INT4_KINDS)
TOLERANCE = dict.fromkeys(packing.INT4_KINDS, 1e-5) | {
    "int8": 1e-5,
    "int8w": 2e-5,
    "bf16": 2e-5,
    "fp32": 1e-5,
}
"""Tolerance for values near 1."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (32, 64), (50, 63), (65, 130), (192, 576)])
def test_matches_numpy(kind: packing.Kind, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((17, k)).astype(np.float32)
    weights = random_weights(rng, kind, n, k)
    (got,) = linears.run(Case(x, (weights,)))
    want = linears.converted(kind, x) @ weights.dense().T
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[kind], atol=TOLERANCE[kind])


FEW_ROWS = elsewhere((*range(1, 18), 29, 31, 32, 33, 45, 48, 49, 64, 65), (*range(1, 18), 33, 65))
"""On both sides of the numbers at which an ISA changes its instructions, and of its blocks."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_independent_of_other_rows_and_threads(kind: packing.Kind) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((70, 200)).astype(np.float32)
    weights = tuple(random_weights(rng, kind, n, 200) for n in (70, 33))
    whole = linears.run(Case(x, weights))
    for rows in FEW_ROWS:
        part = linears.run(Case(x[-rows:], weights), (2, 1, 3, 9)[rows % 4])
        for got, want in zip(part, whole, strict=True):
            np.testing.assert_array_equal(got, want[-rows:])


@pytest.mark.parametrize("kind", KINDS)
def test_many_rows_have_the_bits_of_few(kind: packing.Kind) -> None:
    """With many rows each thread takes some of them through the Op; with few rows, some of the columns."""
    rng = np.random.default_rng(11)
    x, base = (rng.standard_normal((283, w)).astype(np.float32) for w in (330, 70))
    gain = rng.standard_normal(330).astype(np.float32)
    weights = tuple(random_weights(rng, kind, 70, 330) for _ in range(2))
    plain = Case(x, weights, norm=(gain, 1e-5), round_bf16=True)
    for case in (plain, replace(plain, glu=True), replace(plain, weights=weights[:1], residual=base)):
        few = replace(case, x=x[-40:], residual=None if case.residual is None else base[-40:])
        alone = linears.run(few, 2)
        for threads in elsewhere((1, 2, 4), (2,)):
            for got, want in zip(linears.run(case, threads), alone, strict=True):
                np.testing.assert_array_equal(got[-40:], want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_of_linears_has_the_bits_of_single_rows(kind: packing.Kind) -> None:
    """From 56 rows per thread on (28 or more, depending on the ISA) a thread takes its rows through all
    Linears."""
    chain = linears.random_chain(kind, 530, 130, 190)
    whole = linears.run_chain(chain, slice(None), 2)
    want = linears.expected_chain(chain, whole)
    for got, expected in zip(whole, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE[kind], atol=4 * TOLERANCE[kind])
    parts = [slice(0, 1), slice(529, 530), slice(200, 207), slice(0, 112), slice(300, 413), slice(17, 480)]
    few = elsewhere(parts, parts[2:5])
    for part, threads in [(part, threads) for part in few for threads in elsewhere((1, 2, 5), (2, 5))]:
        for got, all_rows in zip(linears.run_chain(chain, part, threads), whole, strict=True):
            np.testing.assert_array_equal(got, all_rows[part])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("panels", elsewhere([1, 3, 5, 9], [1, 5]))
def test_panels_that_are_stolen_are_taken_once(kind: packing.Kind, panels: int) -> None:
    """There are more threads than cores, some without work at the start: these take from the others."""
    rng = np.random.default_rng(panels)
    x, base = (rng.standard_normal((3, w)).astype(np.float32) for w in (2000, 32 * panels - 5))
    weights = random_weights(rng, kind, 32 * panels - 5, 2000)
    (alone,) = linears.run_in_place(x, base, weights, 1, 1)
    want = base + linears.converted(kind, x) @ weights.dense().T
    np.testing.assert_allclose(alone, want, rtol=TOLERANCE[kind], atol=4 * TOLERANCE[kind])
    for got in linears.run_in_place(x, base, weights, 8, 15):
        np.testing.assert_array_equal(got, alone)


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_of_columns_has_the_bits_of_the_whole(kind: packing.Kind) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 130)).astype(np.float32)
    weights = random_weights(rng, kind, 150, 130)
    (whole,) = linears.run(Case(x, (weights,)))
    for n0, n in [(0, 32), (32, 64), (64, 20), (128, 22)]:
        (part,) = linears.run(Case(x, (weights,), views=((n0, n, 0, 130),)))
        np.testing.assert_array_equal(part, whole[:, n0 : n0 + n])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k0", "k"), [(0, 64), (64, 128), (128, 100), (192, 58)])
def test_a_view_along_k_is_that_part_of_the_sum(kind: packing.Kind, k0: int, k: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, k)).astype(np.float32)
    weights = random_weights(rng, kind, 70, 250)
    part = weights.part(slice(32, 70), slice(k0, k0 + k))
    got = linears.run(Case(x, (weights,), views=((32, 38, k0, k),)))
    want = linears.run(Case(x, (part,)))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_fusion_changes_no_bit(kind: packing.Kind, rounded: bool) -> None:
    rng = np.random.default_rng(4)
    x, base = (rng.standard_normal((9, w)).astype(np.float32) for w in (130, 50))
    x, base = (round_bf16(x), round_bf16(base)) if rounded else (x, base)
    gain = rng.standard_normal(130).astype(np.float32)
    weights = tuple(random_weights(rng, kind, 50, 130) for _ in range(2))
    biases = tuple(rng.standard_normal(50).astype(np.float32) for _ in range(2))
    normed = linears.run_rms_norm(x, gain, 1e-5, rounded=rounded)
    plain = Case(normed, weights, biases, round_bf16=rounded)
    gate, up = linears.run(plain)

    fused = replace(plain, x=x, norm=(gain, 1e-5))
    np.testing.assert_array_equal(linears.run(fused), [gate, up])
    (glu,) = linears.run(replace(fused, glu=True), 2)
    np.testing.assert_array_equal(glu, linears.run_pairwise("glu", gate, up, rounded=rounded))
    (added,) = linears.run(replace(fused, weights=weights[:1], biases=biases[:1], residual=base))
    np.testing.assert_array_equal(added, linears.run_pairwise("add", base, gate, rounded=rounded))


def test_norm_bias_and_rounding_match_numpy() -> None:
    rng = np.random.default_rng(5)
    x = (1e3 * rng.standard_normal((6, 576))).astype(np.float32)
    gain, bias = rng.standard_normal(576).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    weights = random_weights(rng, "fp32", 40, 576)
    normed = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-5) * gain
    want = normed @ weights.dense().T + bias
    (got,) = linears.run(Case(x, (weights,), (bias,), norm=(gain, 1e-5)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    (rounded,) = linears.run(Case(x, (weights,), (bias,), norm=(gain, 1e-5), round_bf16=True))
    np.testing.assert_array_equal(rounded, round_bf16(rounded))
    np.testing.assert_allclose(rounded, want, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("k", [64, 130])
def test_int8_accumulators_are_exact(k: int, rows: int) -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(-128, 128, (rows, k), dtype=np.int8)
    values = rng.integers(-128, 128, (50, k), dtype=np.int8)
    x[0], values[0] = -128, -128  # the largest possible sums
    got = linears.accumulators(x, Weights("int8", values, np.ones(50, np.float32)))
    for g in range(-(-k // 64)):
        part = slice(64 * g, 64 * g + 64)
        want = x[:, part].astype(np.int32) @ values[:, part].astype(np.int32).T
        np.testing.assert_array_equal(got[g], want)


@pytest.mark.parametrize(("sign", "weight"), [(1, 127), (1, -128), (-1, 127), (-1, -128)])
def test_the_largest_int8_sums_of_many_groups(sign: int, weight: int) -> None:
    weights = Weights("int8", np.full((40, 576), weight, np.int8), np.ones(40, np.float32))
    x = np.full((40, 576), 127 * sign, np.float32)  # a scale of 1
    (got,) = linears.run(Case(x, (weights,)))
    np.testing.assert_array_equal(got, 576 * 127 * sign * weight)


def test_int8_of_zeros_tiny_values_and_nan() -> None:
    weights = Weights("int8", np.full((3, 128), 127, np.int8), np.ones(3, np.float32))
    x = np.zeros((4, 128), np.float32)
    x[1, :64] = 1e-42  # a scale below fp32's normal numbers counts as 0
    x[2, 5] = np.nan
    x[3, 64:] = 3e-36
    (got,) = linears.run(Case(x, (weights,)))
    np.testing.assert_array_equal(got[:2], 0)
    assert np.isnan(got[2]).all()
    np.testing.assert_allclose(got[3], 64 * 127 * 3e-36, rtol=1e-2)


@pytest.mark.parametrize(
    ("kind", "size", "scale", "message"),
    [
        ("int4", 2048, None, "unknown matrix kind"),
        ("int8", 2048, None, "needs scales"),
        ("fp32", 8192, np.ones(32, np.float32), "takes no scales"),
        ("bf16", 4095, None, "4096 bytes"),
    ],
)
def test_matrix_refuses(kind: str, size: int, scale: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native().Matrix(kind, np.zeros(size, np.uint8), scale, 32, 64)


@pytest.mark.parametrize(
    "view", [(16, 32, 0, 64), (0, 32, 32, 64), (32, 64, 0, 64), (0, 0, 0, 64), (0, 32, 64, 65)]
)
def test_views_must_be_aligned_and_inside(view: tuple[int, int, int, int]) -> None:
    matrix = native().Matrix("int8", np.zeros(64 * 128, np.uint8), np.ones(64, np.float32), 64, 128)
    with pytest.raises(ValueError, match="view"):
        matrix.view(*view)


def refusal(isa: str) -> str:
    code, environment = "from corepipe.kernels import native; native()", os.environ | {"COREPIPE_ISA": isa}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr


def test_unknown_isa_is_refused_by_name() -> None:
    why = "COREPIPE_ISA=mmx is unknown or not supported by this CPU; use one of: "
    assert f"UserError: {why}" in refusal("mmx")


@pytest.mark.skipif(not native().left_out(), reason="this build has all that this CPU runs")
def test_kernels_that_were_left_out_are_named_with_the_command_that_builds_them() -> None:
    name = native().left_out()[0]
    told = refusal(name)
    assert f"COREPIPE_ISA={name}: this build left these kernels out" in told
    assert f"COREPIPE_TABLES=native,{name} make setup" in told


@pytest.mark.parametrize("kind", packing.INT4_KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (50, 63), (65, 130), (70, 576), (33, 2000)])
def test_four_bits_have_the_bits_of_the_twin(kind: packing.Int4Kind, n: int, k: int) -> None:
    """On every ISA, so the bits are the same on all of them."""
    rng = np.random.default_rng(k)
    x = (rng.standard_normal((41, k)) * rng.uniform(1e-3, 1e3, (41, 1))).astype(np.float32)
    x[3], x[4, : k // 2] = 0, 0
    weights = random_weights(rng, kind, n, k)
    want = arithmetic.linear(x, weights.int4(), None, FORMATS["fp32"])
    for rows in (1, 2, 5, 8, 13, 41):
        (got,) = linears.run(Case(x[:rows], (weights,)), 2)
        np.testing.assert_array_equal(got, want[:rows])


@pytest.mark.parametrize("kind", packing.INT4_KINDS)
def test_the_largest_and_smallest_numbers_of_four_bits(kind: packing.Int4Kind) -> None:
    """fp16's subnormal, smallest and largest scales; sums of 127 times 15."""
    group, offsets = packing.int4_form(kind)
    scales = np.array([[2**-24, 2**-14, 3 * 2**-24, 65504.0]], np.float16).repeat(2, 0)
    shape = (2, 256 // group)
    scale = np.resize(scales, shape).astype(np.float16)
    offset = None if offsets == "none" else np.full(shape, -15, np.float16)
    values = np.stack((np.full(256, 15), np.zeros(256))).astype(np.uint8)
    x = np.full((4, 256), 127, np.float32) * np.array([[1], [-1], [1], [-1]], np.float32)
    weights = Weights(kind, values, scale, offset)
    (got,) = linears.run(Case(x, (weights,)))
    np.testing.assert_array_equal(got, arithmetic.linear(x, weights.int4(), None, FORMATS["fp32"]))


def test_a_matrix_of_four_bits_has_its_scales_with_it() -> None:
    weights = random_weights(np.random.default_rng(0), "int4g32m", 40, 100)
    packed = packed_int4.pack(weights.int4())
    with pytest.raises(ValueError, match="has 5120 bytes, got 5119"):
        native().Matrix("int4g32m", packed[:-1], None, 40, 100)
    with pytest.raises(ValueError, match="takes no scales"):
        native().Matrix("int4g32m", packed, np.ones(40, np.float32), 40, 100)
    with pytest.raises(ValueError, match=r"unknown matrix kind 'int4'; use one of int8, .*int4g64m"):
        native().Matrix("int4", packed, None, 40, 100)
