"""The reference executor's arithmetic: number formats, and the Ops' functions of whole arrays, in numpy.

This is the definition of correct results; the native kernels are measured against it.  Each function computes
in fp32 from inputs that are already in their stored formats and rounds its result once, to the compute
format.  It is not batch invariant: numpy's products may give other last bits for another number of rows.
`corepipe.neuron.host.reference` runs Programs with it.

Under tensor parallelism a sum over a split axis becomes T partial sums, each rounded to the compute format,
added in rank order and rounded again.  One AllReduce therefore moves an element by at most
`all_reduce_bound`: half a unit in the last place of every partial sum, of the total and of the unsplit
result.  The effect on the logits depends on the model: `reference.tensor_parallel_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe.neuron.axes import INT8_GROUP
from corepipe.neuron.formats import SWISH_GAIN, SWISH_LIMIT, DType, Format, Function
from corepipe.neuron.numerics import elementary
from corepipe.neuron.values import RopeSpec

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]

INT8_MAX = 127.0


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


def round_stochastically(x: npt.NDArray[np.floating], dtype: DType, seed: int, fp8_max: float = 240.0) -> F32:
    """Rounds x up or down to `dtype` at random, so that the mean of many roundings is x.

    A number between two neighbours of the format is rounded to either with a probability proportional to its
    distance from the other.  The same seed gives the same numbers.  Limits and errors as `round_to`.
    """
    wide = x.astype(np.float64)
    draws = np.random.default_rng(seed).random(wide.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = _spacing(wide, dtype)
        rounded = np.floor(wide / spacing + draws) * spacing
    return round_to(rounded, dtype, fp8_max)


def _spacing(x: npt.NDArray[np.floating], dtype: DType) -> npt.NDArray[np.float64]:
    """Returns the distance between the neighbours of |x| in the format: one unit in the last place."""
    if dtype is DType.INT8:
        raise ValueError("int8 has no exponent: its spacing is its scale")
    grid = _GRIDS[dtype]
    _, exponent = np.frexp(x.astype(np.float64))
    bits = np.maximum(exponent - 1, grid.min_exponent) - grid.mantissa_bits
    return np.asarray(np.ldexp(1.0, bits), np.float64)


def quantize_weight(weight: F32) -> tuple[I8, F32]:
    """Quantises symmetrically to int8 for each output channel: weight [N, K] -> (int8 [N, K], scale fp32
    [N]).

    scale = max |row| / 127 (1 for a row of zeros); the nearest integer, ties to even.
    """
    amax = np.abs(weight).max(axis=1, initial=0.0)
    scale = (amax / np.float32(INT8_MAX)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1.0
    quantized = np.rint(weight / scale[:, None])
    return np.clip(quantized, -INT8_MAX, INT8_MAX).astype(np.int8), scale


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


@dataclass(frozen=True, slots=True)
class Matrix:
    """A Linear's stored weight [N, K]: numbers of its format, or integers with a scale [N], as fp32."""

    values: F32
    scale: F32 | None = None


def linear(x: F32, weight: Matrix, bias: F32 | None, fmt: Format) -> F32:
    """Computes x [M, K] times weight.T, plus bias: [M, N].

    W8A8 adds up int32 sums over groups of 64 of K, each times its scale, in fp32 and in order of K; otherwise
    x is rounded to the format's activations.  The weight's scale is applied after the sum, the bias after the
    scale.
    """
    if fmt.activations is DType.INT8:
        total = _int8_product(x, weight.values)
    else:
        total = round_to(x, fmt.activations) @ weight.values.T
    if weight.scale is not None:
        total = total * weight.scale
    if bias is not None:
        total = total + bias
    return round_to(total, fmt.compute)


def _int8_product(x: F32, weight: F32) -> F32:
    """Computes the product in groups, whose sums are exact in fp32, being integers below 64 * 127 * 127 <
    2**24."""
    quantized, scale = quantize_activations(x)
    total = np.zeros((len(x), len(weight)), np.float32)
    for g in range(scale.shape[1]):
        part = slice(g * INT8_GROUP, (g + 1) * INT8_GROUP)
        total += (quantized[:, part].astype(np.float32) @ weight[:, part].T) * scale[:, g, None]
    return total


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


def rope_tables(rope: RopeSpec, max_positions: int) -> tuple[F32, F32]:
    """Returns cos and sin, each [max_positions, rotary_dim / 2] fp32, times the attention factor.

    Angles are products in fp32, as transformers computes them; their cosines are the nearest fp32.
    """
    angles = np.outer(np.arange(max_positions, dtype=np.float32), np.asarray(rope.inv_freq, np.float32))
    factor = np.float32(rope.attention_factor)
    cos, sin = elementary.cos_sin(angles.astype(np.float64))
    return cos.astype(np.float32) * factor, sin.astype(np.float32) * factor


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


def all_reduce_bound(parts: Sequence[F32], dtype: DType) -> npt.NDArray[np.float64]:
    """Returns how far the sum of rounded partial sums may be from the unsplit sum, both rounded to `dtype`.

    parts: the unrounded partial sums, of one shape.  Half a unit in the last place of each of them, of their
    sum and of the unsplit sum; the rounding of fp32 itself is left out.
    """
    wide = np.asarray(parts, np.float64)
    total = np.abs(wide.sum(axis=0))
    rounded = _spacing(wide, dtype).sum(axis=0) / 2
    return np.asarray(rounded + (_spacing(total, dtype) + _spacing(total + rounded, dtype)) / 2)


def unit(dtype: DType) -> float:
    """Returns one unit in the last place, relative to the number."""
    return float(2.0 ** -_GRIDS[dtype].mantissa_bits)
