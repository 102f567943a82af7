"""The reference executor's arithmetic equals definitions written another way: float64, integers, loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.neuron.axes import PAD, AxisShard, cut
from corepipe.neuron.formats import FORMATS, DType
from corepipe.neuron.numerics.arithmetic import quantize_weight, rope_tables
from corepipe.neuron.numerics.int4 import Int8
from corepipe.neuron.ops import Function
from corepipe.neuron.values import RopeSpec
from tests.reference import arithmetic
from tests.reference.arithmetic import round_to

FLOATS = [DType.FP32, DType.BF16, DType.FP16, DType.FP8_E4M3, DType.FP8_E5M2]
SPACING_AT_ONE = {
    DType.FP32: 2.0**-23,
    DType.BF16: 2.0**-7,
    DType.FP16: 2.0**-10,
    DType.FP8_E4M3: 2.0**-3,
    DType.FP8_E5M2: 2.0**-2,
}
SMALLEST = {
    DType.FP32: 2.0**-149,
    DType.BF16: 2.0**-133,
    DType.FP16: 2.0**-24,
    DType.FP8_E4M3: 2.0**-9,
    DType.FP8_E5M2: 2.0**-16,
}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_ties_go_to_even(dtype):
    step = SPACING_AT_ONE[dtype]
    x = np.array([1 + step / 2, 1 + 3 * step / 2, -1 - step / 2, 1 + step / 2 * 1.01])
    rounded = round_to(x, dtype)
    expected = [1, 1 + 2 * step, -1, 1 + step] if dtype is not DType.FP32 else np.float32(x)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, np.asarray(expected, np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_below_the_smallest_normal_one(dtype):
    tiny = SMALLEST[dtype]
    x = np.array([tiny, 3 * tiny, tiny * 0.51, tiny * 0.49])
    np.testing.assert_array_equal(round_to(x, dtype), np.float32([tiny, 3 * tiny, tiny, 0]))


@settings(derandomize=True)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1), st.sampled_from(FLOATS))
def test_rounding_is_idempotent_and_odd(values, dtype):
    x = np.array(values, np.float32)
    once = round_to(x, dtype)
    np.testing.assert_array_equal(round_to(once, dtype), once)
    np.testing.assert_array_equal(round_to(-x, dtype), -once)


def test_what_is_too_big():
    x = np.array([1e6, -1e6, 239, 250, np.inf])
    np.testing.assert_array_equal(round_to(x, DType.FP8_E4M3), [240, -240, 240, 240, 240])
    np.testing.assert_array_equal(round_to(x, DType.FP8_E4M3, 448.0), [448, -448, 240, 256, 448])
    np.testing.assert_array_equal(round_to(x, DType.FP8_E5M2), [np.inf, -np.inf, 224, 256, np.inf])
    np.testing.assert_array_equal(round_to(x, DType.FP16), [np.inf, -np.inf, 239, 250, np.inf])
    assert math.isnan(round_to(np.array([np.nan]), DType.FP8_E4M3)[0])


def test_int8_has_no_rounding_without_a_scale():
    with pytest.raises(ValueError, match="scale"):
        round_to(np.ones(1), DType.INT8)


@settings(derandomize=True)
@given(st.integers(1, 5), st.integers(1, 90), st.integers(0, 99))
def test_weights_are_within_half_a_step(n, k, seed):
    weight = normal(n, k, seed=seed) * np.float32(10.0) ** (seed % 7 - 3)
    quantized, scale = quantize_weight(weight)
    assert (quantized.dtype, scale.dtype) == (np.int8, np.float32)
    np.testing.assert_array_equal(np.abs(quantized.astype(int)).max(axis=1), 127)
    error = np.abs(quantized.astype(np.float64) * scale[:, None].astype(np.float64) - weight)
    assert np.all(error <= scale[:, None] * 0.50001)


def test_a_row_of_zeros_has_a_harmless_scale():
    quantized, scale = quantize_weight(np.float32([[0, 0], [1e-44, 0], [0, -127]]))
    np.testing.assert_array_equal(quantized, [[0, 0], [0, 0], [0, -127]])
    np.testing.assert_array_equal(scale, [1, 1, 1])


def test_activations_have_a_scale_for_each_row_and_group():
    x = np.zeros((2, 70), np.float32)
    x[0, :4] = [127, 2.5, 3.5, -0.5]
    x[0, 64:66] = [-254, 1]
    quantized, scale = arithmetic.quantize_activations(x)
    np.testing.assert_array_equal(scale, [[1, 2], [0, 0]])
    np.testing.assert_array_equal(quantized[0, :4], [127, 2, 4, 0])
    np.testing.assert_array_equal(quantized[0, 64:], [-127, 0, 0, 0, 0, 0])
    assert not quantized[1].any()


def test_nan_survives_quantisation():
    x = normal(2, 64)
    x[1, 3] = np.nan
    _, scale = arithmetic.quantize_activations(x)
    assert np.isnan(scale[:, 0]).tolist() == [False, True]


def test_int8_linear_against_integers():
    x, weight, bias = normal(3, 150, seed=1), normal(5, 150, seed=2), normal(5, seed=3)
    w, w_scale = quantize_weight(weight)
    q, scale = arithmetic.quantize_activations(x)
    expected = np.empty((3, 5))
    for m in range(3):
        for n in range(5):
            total = sum(
                int(q[m, g : g + 64].astype(int) @ w[n, g : g + 64].astype(int)) * float(scale[m, g // 64])
                for g in range(0, 150, 64)
            )
            expected[m, n] = total * w_scale[n] + bias[n]
    got = arithmetic.linear(x, Int8(w, w_scale), bias, FORMATS["int8"])
    np.testing.assert_allclose(got, expected, rtol=2.0**-8, atol=1e-5)
    np.testing.assert_array_equal(got, round_to(got, DType.BF16))
    np.testing.assert_allclose(got, x @ weight.T + bias, atol=0.25)


def test_int8_groups_keep_their_scale_when_cut_between_groups():
    """A row-parallel Linear therefore adds the group sums of the unsplit one."""
    x = normal(4, 192)
    whole_q, whole_scale = arithmetic.quantize_activations(x)
    for part in (slice(0, 64), slice(64, 192)):
        q, scale = arithmetic.quantize_activations(np.ascontiguousarray(x[:, part]))
        np.testing.assert_array_equal(q, whole_q[:, part])
        np.testing.assert_array_equal(scale, whole_scale[:, part.start // 64 : part.stop // 64])


@pytest.mark.parametrize("name", ["fp32", "bf16", "int8-weights"])
def test_float_linear(name):
    fmt = FORMATS[name]
    x, weight = normal(3, 40), normal(5, 40, seed=1)
    eight = fmt.weights is DType.INT8
    matrix = Int8(*quantize_weight(weight)) if eight else round_to(weight, DType.BF16)
    dense = arithmetic.dense(matrix).astype(np.float64)
    expected = round_to(x, fmt.activations).astype(np.float64) @ dense.T
    tolerance = 1e-6 if fmt.compute is DType.FP32 else 2.0**-8
    np.testing.assert_allclose(arithmetic.linear(x, matrix, None, fmt), expected, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 3])
def test_rms_norm(groups):
    x, gain = normal(4, 24), normal(24 // groups, seed=1)
    parts = x.astype(np.float64).reshape(4, groups, -1)
    expected = parts / np.sqrt((parts**2).mean(axis=2, keepdims=True) + 1e-5) * gain
    got = arithmetic.rms_norm(x, gain, 1e-5, DType.FP32)
    np.testing.assert_allclose(got, expected.reshape(4, 24), rtol=1e-5)
    np.testing.assert_array_equal(arithmetic.rms_norm(x, gain, 1e-5, DType.BF16), round_to(got, DType.BF16))


def test_rotation_turns_pairs_and_leaves_the_rest():
    spec = RopeSpec((1.0, 0.1), attention_factor=2.0)
    cos, sin = rope_tables(spec, 8)
    assert cos.shape == sin.shape == (8, 2)
    x = normal(3, 2 * 6)
    positions = np.array([0, 3, 7])
    got = arithmetic.rotate(x, 6, cos[positions], sin[positions], DType.FP32)
    for m, position in enumerate(positions):
        for h in range(2):
            head, rotated = x[m, 6 * h :][:6], got[m, 6 * h :][:6]
            for i, frequency in enumerate(spec.inv_freq):
                turned = complex(head[i], head[i + 2]) * np.exp(1j * position * frequency) * 2
                assert complex(rotated[i], rotated[i + 2]) == pytest.approx(turned, abs=1e-5)
            np.testing.assert_array_equal(rotated[4:], head[4:])


def test_rope_tables_are_the_nearest_fp32_on_every_machine():
    """numpy's own fp32 cosine differs in last bits from one instruction set to the next."""
    spec = RopeSpec(tuple(float(np.float32(10000.0 ** (-i / 16))) for i in range(16)))
    positions = np.arange(512, dtype=np.float32)
    angles = np.outer(positions, np.asarray(spec.inv_freq, np.float32))
    for table, function in zip(rope_tables(spec, 512), (math.cos, math.sin), strict=True):
        expected = np.array([function(float(angle)) for angle in angles.flat], np.float32)
        assert table.dtype == np.float32
        np.testing.assert_array_equal(table.ravel(), expected)


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm_is_that_of_the_definition(gain, bias):
    x, g, b = 3 * normal(5, 24) + 7, normal(24, seed=1), normal(24, seed=2)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-3)
    expected = expected * (g if gain else 1) + (b if bias else 0)
    got = arithmetic.layer_norm(x, g if gain else None, b if bias else None, 1e-3, DType.FP32)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    rounded = arithmetic.layer_norm(x, g if gain else None, b if bias else None, 1e-3, DType.BF16)
    np.testing.assert_array_equal(rounded, round_to(got, DType.BF16))


ELEMENTS = {
    Function.SILU: lambda x: x / (1 + math.exp(-x)),
    Function.GELU: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    Function.GELU_TANH: lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Function.RELU: lambda x: max(x, 0.0),
    Function.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    Function.TANH: math.tanh,
    Function.CLAMPED_SWISH: lambda x: min(x, 7) / (1 + math.exp(-1.702 * min(x, 7))),
}


@pytest.mark.parametrize("function", Function)
def test_functions_are_those_of_the_definitions(function):
    x = np.linspace(-9, 9, 1001, dtype=np.float32)
    expected = np.array([ELEMENTS[function](float(each)) for each in x])
    got = arithmetic.activation(x, function, DType.FP32)
    np.testing.assert_allclose(got, expected, rtol=4e-7, atol=1e-9)
    np.testing.assert_array_equal(
        arithmetic.activation(x, function, DType.BF16), round_to(got, DType.BF16), str(function)
    )
    far = arithmetic.activation(np.float32([-1e4, 1e4]), function, DType.FP32)
    assert np.isfinite(far).all()
    assert far[0] in (0, -1)


def test_scale_gate_and_add():
    gate, up = np.float32([[-200, -1, 0, 1, 80]]), np.float32([[3, 3, 3, 3, 3]])
    expected = [[0, -3 / (1 + math.e), 0, 3 / (1 + math.exp(-1)), 240]]
    np.testing.assert_allclose(
        arithmetic.gated(gate, up, Function.SILU, DType.FP32), expected, rtol=1e-6, atol=1e-30
    )
    held = [[0, 0, 0, 4 / (1 + math.exp(-1.702)), 28 / (1 + math.exp(-7 * 1.702))]]
    held[0][1] = -4 / (1 + math.exp(1.702))
    got = arithmetic.gated(gate, up, Function.CLAMPED_SWISH, DType.FP32)
    np.testing.assert_allclose(got, held, rtol=1e-6, atol=1e-30)
    ups = np.float32([[-9, -7, 0, 7, 9]])
    got = arithmetic.gated(np.full((1, 5), 7, np.float32), ups, Function.CLAMPED_SWISH, DType.FP32)
    np.testing.assert_allclose(got[0] / got[0, 2], [-6, -6, 1, 8, 8], rtol=1e-6)
    np.testing.assert_array_equal(arithmetic.clamp(gate, 2.5, DType.FP32), [[-2.5, -1, 0, 1, 2.5]])
    np.testing.assert_array_equal(arithmetic.scale(gate, 1 / 3, DType.FP32), gate * np.float32(1 / 3))
    np.testing.assert_array_equal(arithmetic.add(np.float32([1]), np.float32([2.0**-9]), DType.BF16), [1])


def test_cut_takes_ranges_and_pads():
    array = np.arange(12).reshape(3, 4)
    rows, columns = AxisShard(((2, 1), (0, 1), (2, 1))), AxisShard(((1, 2), (PAD, 1)))
    np.testing.assert_array_equal(cut(array, [rows, columns]), [[9, 10, 0], [1, 2, 0], [9, 10, 0]])
    with pytest.raises(ValueError, match="a shard ends at 5 of 4"):
        cut(array, [AxisShard(((0, 3),)), AxisShard(((3, 2),))])
