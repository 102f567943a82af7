"""Arithmetic of the reference executor, in numpy: number formats, and the Ops' functions of whole arrays.

This is the definition of correct results; the native kernels are measured against it.  Each function computes
in fp32 from inputs that are already in their stored formats and rounds its result once, to the compute
format.  It is not batch invariant: numpy's products may give other last bits for another number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe.neuron.axes import INT8_GROUP
from corepipe.neuron.formats import SWISH_GAIN, SWISH_LIMIT, DType, Format, Function
from corepipe.neuron.numerics.arithmetic import F32, I8, INT8_MAX
from corepipe.neuron.numerics.int4 import Int4, Int8, Stored
from corepipe.neuron.numerics.low_rank import LowRank


@dataclass(frozen=True, slots=True)
class _Grid:
    """A floating-point format: explicit mantissa bits, exponent of its smallest normal number."""

    storage: npt.DTypeLike
    mantissa_bits: int
    min_exponent: int


_GRIDS = {
    DType.FP32: _Grid(np.float32, 23, -126),
    DType.BF16: _Grid(ml_dtypes.bfloat16, 7, -126),
    DType.FP16: _Grid(np.float16, 10, -14),
    DType.FP8_E4M3: _Grid(ml_dtypes.float8_e4m3fn, 3, -6),
    DType.FP8_E5M2: _Grid(ml_dtypes.float8_e5m2, 2, -14),
}


def round_to(x: npt.NDArray[np.floating], dtype: DType, fp8_max: float = 240.0) -> F32:
    """Rounds x to `dtype`, to nearest, ties to even; returns fp32 in the shape of x.

    fp8 e4m3 saturates at `fp8_max`: 240, or 448 from Trn3 on; in the other formats a number that is too large
    becomes infinite.  Raises ValueError for int8, which needs a scale.
    """
    if dtype is DType.INT8:
        raise ValueError("int8 needs a scale: use quantize_weight or quantize_activations")
    if dtype is DType.FP8_E4M3:
        x = np.clip(x, -fp8_max, fp8_max)
    with np.errstate(over="ignore"):
        return x.astype(_GRIDS[dtype].storage).astype(np.float32)


def quantize_activations(x: F32, group: int = INT8_GROUP) -> tuple[I8, F32]:
    """Quantises symmetrically to int8 for each row and group of K: x [M, K] -> (int8 [M, K], scales [M,
    ceil(K / group)]).

    scale = max |group| / 127 in fp32, 0 where that is no normal number; q = rint(x * (1 / scale)), ties to
    even, and 0 where the scale is 0.
    """
    rows, width = x.shape
    groups = -(-width // group)
    padded = np.zeros((rows, groups * group), np.float32)
    padded[:, :width] = x
    blocks = padded.reshape(rows, groups, group)
    scale = np.abs(blocks).max(axis=2) / np.float32(INT8_MAX)
    scale[scale < np.finfo(np.float32).tiny] = 0.0
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    with np.errstate(invalid="ignore"):  # NaN and infinity are kept in the scale
        quantized = np.rint(blocks * inverse[:, :, None]).astype(np.int8)
    return np.ascontiguousarray(quantized.reshape(rows, -1)[:, :width]), scale


def dense(weight: Stored) -> F32:
    """Returns the numbers [N, K] that a matrix of any format stands for."""
    if isinstance(weight, np.ndarray):
        return weight
    return weight.dense() if isinstance(weight, Int4) else weight.values * weight.scale[:, None]


def linear(x: F32, weight: Stored, bias: F32 | None, fmt: Format) -> F32:
    """Computes x [M, K] times weight.T, plus bias: [M, N].

    W8A8 adds up int32 sums over groups of 64 of K, each times its scale, in fp32 and in order of K; otherwise
    x is rounded to the format's activations.  The weight's scale is applied after the sum, the bias after the
    scale.
    """
    return round_to(_products(x, weight, bias, fmt), fmt.compute)


def adapted(x: F32, weight: Stored, bias: F32 | None, adapter: LowRank, fmt: Format) -> F32:
    """Computes the same with an adapter: both sums are rounded as one.

    a, b and the product with a are rounded to the compute format.
    """
    h = low_rank_products(x, adapter, fmt)
    change = expanded(h, round_to(adapter.b, fmt.compute))
    return round_to(_products(x, weight, bias, fmt) + change, fmt.compute)


def low_rank_products(x: F32, adapter: LowRank, fmt: Format) -> F32:
    """Computes x [M, K] times a.T, times the scale, in the order of the kernels: sixteen sums of every
    sixteenth element, which are added up in pairs eight apart, then four, two and one."""
    a = round_to(adapter.a, fmt.compute)
    width = -(-x.shape[1] // 32) * 32
    wide, taps = (np.pad(v, ((0, 0), (0, width - v.shape[1]))).reshape(len(v), -1, 16) for v in (x, a))
    sums = np.zeros((len(x), len(a), 16), np.float32)
    for step in range(wide.shape[1]):
        sums = _fused(wide[:, None, step], taps[None, :, step], sums)
    for apart in (8, 4, 2, 1):
        sums = sums[..., :apart] + sums[..., apart : 2 * apart]
    return round_to(sums[..., 0] * np.float32(adapter.scale), fmt.compute)


def expanded(h: F32, b: F32) -> F32:
    """Computes h [M, rank] times b.T in the order of the kernels: four sums of every fourth product."""
    sums = np.zeros((4, len(h), len(b)), np.float32)
    for j in range(h.shape[1]):
        sums[j % 4] = _fused(h[:, j, None], b[None, :, j], sums[j % 4])
    return (sums[0] + sums[2]) + (sums[1] + sums[3])


def _products(x: F32, weight: Stored, bias: F32 | None, fmt: Format) -> F32:
    """Computes the unrounded result of a Linear."""
    if isinstance(weight, Int4):
        total = _int4_product(x, weight)
    else:
        values = weight if isinstance(weight, np.ndarray) else weight.values.astype(np.float32)
        by_integers = fmt.activations is DType.INT8
        total = _int8_product(x, values) if by_integers else round_to(x, fmt.activations) @ values.T
    if isinstance(weight, Int8):
        total = total * weight.scale
    return total if bias is None else total + bias


def _int8_product(x: F32, weight: F32) -> F32:
    """Computes the product in groups, whose sums are exact in fp32, being integers below 64 * 127 * 127 <
    2**24."""
    quantized, scale = quantize_activations(x)
    total = np.zeros((len(x), len(weight)), np.float32)
    for g in range(scale.shape[1]):
        part = slice(g * INT8_GROUP, (g + 1) * INT8_GROUP)
        total += (quantized[:, part].astype(np.float32) @ weight[:, part].T) * scale[:, g, None]
    return total


def _int4_product(x: F32, weight: Int4) -> F32:
    """Computes for each group of weights, in order of K: t = a S + s p, total += t times the scale of x.

    x is quantised in the same groups.  p, the product of the integers, and S, the sum of x's, are whole
    numbers that fp32 holds; a is the number that is added to q s.  s p, t and the total are rounded, once
    each: the last two are fused multiply-adds.  Without offsets a is 0, and p is the product of the integers
    less 8.
    """
    quantized, scale_x = quantize_activations(x, weight.group)
    scale, added, plain = weight.scale.astype(np.float32), weight.added(), weight.offset is None
    integers = weight.values.astype(np.float32) - np.float32(8 if plain else 0)
    total = np.zeros((len(x), len(weight.values)), np.float32)
    for g in range(scale.shape[1]):
        part = slice(g * weight.group, (g + 1) * weight.group)
        q = quantized[:, part].astype(np.float32)
        t = (q @ integers[:, part].T) * scale[:, g]
        if not plain:
            t = _fused(q.sum(axis=1, dtype=np.float32)[:, None], added[:, g], t)
        total = _fused(t, scale_x[:, g, None], total)
    return total


def _fused(a: F32, b: F32, c: F32) -> F32:
    """Returns a b + c, rounded once.

    fp64 holds the product.  The sum is rounded to odd there, after which rounding it to fp32 is as if it had
    been exact (Boldo and Melquiond, Emulation of a FMA, IEEE Transactions on Computers 57, 2008).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = a.astype(np.float64) * b
        total = product + c
        part = total - product
        rest = (product - (total - part)) + (c - part)
        even = np.isfinite(rest) & (rest != 0) & (total.view(np.int64) & 1 == 0)
        total[even] = np.nextafter(total[even], np.copysign(np.inf, rest[even]))
        return total.astype(np.float32)


def rms_norm(x: F32, gain: F32, eps: float, compute: DType, groups: int = 1) -> F32:
    """x / sqrt(mean(x**2) + eps) * gain; the mean is over each of `groups` parts of len(gain) elements."""
    gain = gain.reshape(groups, -1)
    parts = x.reshape(len(x), x.shape[1] // gain.size, *gain.shape)
    mean = np.mean(np.square(parts), axis=3, keepdims=True, dtype=np.float32)
    factor = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return round_to((parts * factor * gain).reshape(x.shape), compute)


def layer_norm(
    x: F32, gain: F32 | None, bias: F32 | None, eps: float, compute: DType, groups: int = 1
) -> F32:
    """(x - mean) / sqrt(variance + eps), times the gain, plus the bias.

    It runs over each row, or over each of `groups` parts of len(gain) elements of it.
    """
    width = x.shape[1] if gain is None else gain.size
    parts = x.reshape(len(x), x.shape[1] // width, groups, width // groups)
    centred = parts - np.mean(parts, axis=3, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centred), axis=3, keepdims=True, dtype=np.float32)
    out = centred * (np.float32(1) / np.sqrt(variance + np.float32(eps)))
    if gain is not None:
        out = out * gain.reshape(groups, -1)
    return round_to((out if bias is None else out + bias.reshape(groups, -1)).reshape(x.shape), compute)


def normalize(x: F32, eps: float, compute: DType) -> F32:
    """x / max(|x|, eps): rows of Euclidean length 1."""
    length = np.sqrt(np.sum(np.square(x), axis=1, keepdims=True, dtype=np.float32))
    return round_to(x * (np.float32(1) / np.maximum(length, np.float32(eps))), compute)


def rotate(x: F32, head_dim: int, cos: F32, sin: F32, compute: DType) -> F32:
    """Rotates each head of x [M, heads * head_dim]; cos, sin [M, rotary_dim / 2] are the rows' own."""
    heads = x.reshape(len(x), x.shape[1] // head_dim, head_dim)
    half = cos.shape[1]
    a, b, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    c, s = cos[:, None], sin[:, None]
    rotated = np.concatenate([a * c - b * s, b * c + a * s, rest], axis=2)
    return round_to(rotated.reshape(x.shape), compute)


def apply(function: Function, x: F32) -> F32:
    """Returns function(x), unrounded.  GELU, tanh and the clamped swish are the fp32 nearest to their value
    in float64."""
    wide = x.astype(np.float64)
    out: npt.NDArray[np.floating]
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: silu and sigmoid are 0 there
        match function:
            case Function.SILU:
                out = x / (np.float32(1) + np.exp(-x))
            case Function.SIGMOID:
                out = np.float32(1) / (np.float32(1) + np.exp(-x))
            case Function.RELU:
                out = np.maximum(x, np.float32(0))
            case Function.TANH:
                out = np.tanh(wide)
            case Function.GELU:
                out = wide / 2 * np.vectorize(math.erfc, [np.float64])(-wide * math.sqrt(0.5))
            case Function.GELU_TANH:
                out = wide / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
            case Function.CLAMPED_SWISH:
                low = np.minimum(wide, SWISH_LIMIT)
                out = low / (1 + np.exp(-SWISH_GAIN * low))
    return out.astype(np.float32)


def activation(x: F32, function: Function, compute: DType) -> F32:
    """function(x)."""
    return round_to(apply(function, x), compute)


def gated(gate: F32, up: F32, function: Function, compute: DType) -> F32:
    """function(gate) * up; for `clamped_swish` up is first clamped to its limit and increased by 1."""
    if function is Function.CLAMPED_SWISH:
        up = np.clip(up, -SWISH_LIMIT, SWISH_LIMIT) + np.float32(1)
    return round_to(apply(function, gate) * up, compute)


def scale(x: F32, factor: float, compute: DType, by: F32 | None = None) -> F32:
    """x times a factor, which is first multiplied by each row's own factor `by` [rows, 1], if given."""
    own = np.float32(factor) if by is None else np.float32(factor) * by
    return round_to(x * own, compute)


def clamp(x: F32, limit: float, compute: DType) -> F32:
    """x clamped to -limit .. limit."""
    return round_to(np.clip(x, np.float32(-limit), np.float32(limit)), compute)


def add(a: F32, b: F32, compute: DType) -> F32:
    """a + b."""
    return round_to(a + b, compute)


def unit(dtype: DType) -> float:
    """Returns one unit in the last place, relative to the number."""
    return float(2.0 ** -_GRIDS[dtype].mantissa_bits)
