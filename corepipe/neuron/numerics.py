"""The reference twin's arithmetic: number formats, and what Ops do to whole arrays, in numpy.

This defines what is right; the native kernels are measured against it.  Each function computes in fp32
from inputs that are already in their stored formats and rounds its result once, to the compute format.
It is not batch invariant: numpy's products may give other last bits for another number of rows.
`corepipe.neuron.reference` runs Programs with it.

Under tensor parallelism a sum over a split axis becomes T partial sums, each rounded to the compute
format, added in rank order and rounded again.  One AllReduce therefore moves an element by at most
`all_reduce_bound`: half a unit in the last place of every partial sum, of the total and of the unsplit
result.  What becomes of that at the logits depends on the model: `reference.tensor_parallel_bound`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe.neuron import elementary
from corepipe.neuron.graph import INT8_GROUP, DType, Format, Function, RopeSpec

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
    """x rounded to `dtype`, to nearest, ties to even; kept as fp32, in the shape of x.

    fp8 e4m3 saturates at `fp8_max`: 240, or 448 from Trn3 on; in the other formats what is too big becomes
    infinite.  Raises ValueError for int8, which needs a scale.
    """
    if dtype is DType.INT8:
        raise ValueError("int8 needs a scale: use quantize_weight or quantize_activations")
    if dtype is DType.FP8_E4M3:
        x = np.clip(x, -fp8_max, fp8_max)
    with np.errstate(over="ignore"):
        return x.astype(_GRIDS[dtype].storage).astype(np.float32)


def round_stochastically(x: npt.NDArray[np.floating], dtype: DType, seed: int, fp8_max: float = 240.0) -> F32:
    """x rounded up or down to `dtype` at random, so that the mean of many roundings is x.

    A number between two neighbours of the format goes to either with a probability proportional to its
    distance from the other.  The same seed gives the same draws.  Limits and errors as `round_to`.
    """
    wide = x.astype(np.float64)
    draws = np.random.default_rng(seed).random(wide.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = _spacing(wide, dtype)
        rounded = np.floor(wide / spacing + draws) * spacing
    return round_to(rounded, dtype, fp8_max)


def _spacing(x: npt.NDArray[np.floating], dtype: DType) -> npt.NDArray[np.float64]:
    """Distance between the neighbours of |x| in the format: one unit in the last place."""
    if dtype is DType.INT8:
        raise ValueError("int8 has no exponent: its spacing is its scale")
    grid = _GRIDS[dtype]
    _, exponent = np.frexp(x.astype(np.float64))
    bits = np.maximum(exponent - 1, grid.min_exponent) - grid.mantissa_bits
    return np.asarray(np.ldexp(1.0, bits), np.float64)


def quantize_weight(weight: F32) -> tuple[I8, F32]:
    """Symmetric int8 for each output channel: weight [N, K] -> (int8 [N, K], scale fp32 [N]).

    scale = max |row| / 127 (1 for a row of zeros); the nearest integer, ties to even.
    """
    amax = np.abs(weight).max(axis=1, initial=0.0)
    scale = (amax / np.float32(INT8_MAX)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1.0
    quantized = np.rint(weight / scale[:, None])
    return np.clip(quantized, -INT8_MAX, INT8_MAX).astype(np.int8), scale


def quantize_activations(x: F32, group: int = INT8_GROUP) -> tuple[I8, F32]:
    """Symmetric int8 for each row and group of K: x [M, K] -> (int8 [M, K], scales [M, ceil(K / group)]).

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
    with np.errstate(invalid="ignore"):  # NaN and infinity live on in the scale
        quantized = np.rint(blocks * inverse[:, :, None]).astype(np.int8)
    return np.ascontiguousarray(quantized.reshape(rows, -1)[:, :width]), scale


@dataclass(frozen=True, slots=True)
class Matrix:
    """A Linear's stored weight [N, K]: numbers of its format, or integers with a scale [N], as fp32."""

    values: F32
    scale: F32 | None = None


def linear(x: F32, weight: Matrix, bias: F32 | None, fmt: Format) -> F32:
    """x [M, K] times weight.T, plus bias: [M, N].

    W8A8 adds up int32 sums over groups of 64 of K, each times its scale, in fp32 and in order of K;
    otherwise x is rounded to the format's activations.  The weight's scale comes after the sum, the bias
    after the scale.
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
    """Group sums are exact in fp32, being integers below 64 * 127 * 127 < 2**24."""
    quantized, scale = quantize_activations(x)
    total = np.zeros((len(x), len(weight)), np.float32)
    for g in range(scale.shape[1]):
        part = slice(g * INT8_GROUP, (g + 1) * INT8_GROUP)
        total += (quantized[:, part].astype(np.float32) @ weight[:, part].T) * scale[:, g, None]
    return total


def rms_norm(x: F32, gain: F32, eps: float, compute: DType) -> F32:
    """x / sqrt(mean(x**2) + eps) * gain, over each group of len(gain) consecutive elements."""
    groups = x.reshape(len(x), x.shape[1] // len(gain), len(gain))
    mean = np.mean(np.square(groups), axis=2, keepdims=True, dtype=np.float32)
    factor = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return round_to((groups * factor * gain).reshape(x.shape), compute)


def layer_norm(x: F32, gain: F32 | None, bias: F32 | None, eps: float, compute: DType) -> F32:
    """(x - mean) / sqrt(variance + eps) over each row, times the gain, plus the bias."""
    centred = x - np.mean(x, axis=1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centred), axis=1, keepdims=True, dtype=np.float32)
    out = centred * (np.float32(1) / np.sqrt(variance + np.float32(eps)))
    if gain is not None:
        out = out * gain
    return round_to(out if bias is None else out + bias, compute)


def normalize(x: F32, eps: float, compute: DType) -> F32:
    """x / max(|x|, eps): rows of Euclidean length 1."""
    length = np.sqrt(np.sum(np.square(x), axis=1, keepdims=True, dtype=np.float32))
    return round_to(x * (np.float32(1) / np.maximum(length, np.float32(eps))), compute)


def rope_tables(rope: RopeSpec, max_positions: int) -> tuple[F32, F32]:
    """cos and sin, each [max_positions, rotary_dim / 2] fp32, times the attention factor.

    Angles are products in fp32, as transformers computes them; their cosines are the nearest fp32.
    """
    angles = np.outer(np.arange(max_positions, dtype=np.float32), np.asarray(rope.inv_freq, np.float32))
    factor = np.float32(rope.attention_factor)
    cos, sin = elementary.cos_sin(angles.astype(np.float64))
    return cos.astype(np.float32) * factor, sin.astype(np.float32) * factor


def rotate(x: F32, head_dim: int, cos: F32, sin: F32, compute: DType) -> F32:
    """x [M, heads * head_dim] with each head rotated; cos, sin [M, rotary_dim / 2] are the rows' own."""
    heads = x.reshape(len(x), x.shape[1] // head_dim, head_dim)
    half = cos.shape[1]
    a, b, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    c, s = cos[:, None], sin[:, None]
    rotated = np.concatenate([a * c - b * s, b * c + a * s, rest], axis=2)
    return round_to(rotated.reshape(x.shape), compute)


@functools.cache
def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """By how much each head's scores fall a position: 2 ** (-most * i / heads), i from 1 (Press et al. 2022).

    Where `heads` is no power of two, those of the next smaller one come first, then every second one of the
    next larger one.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [elementary.power(2.0, -most * i / power) for i in range(1, power + 1)]
    between = [elementary.power(2.0, -most * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return tuple(float(np.float32(slope)) for slope in (*slopes, *between)[:heads])


MAX_DISTANCE = 128
"""From so far on all distances share a bucket (T5Config's and MPNet's default)."""


def distance_buckets(ahead: npt.NDArray[np.integer], buckets: int) -> npt.NDArray[np.integer]:
    """Which of so many biases a key has that lies `ahead` of its row: half of them are of keys behind it; of
    either half the first half are of single distances, the others of ranges that grow with the logarithm
    (Raffel et al. 2020; transformers, MPNetEncoder.relative_position_bucket)."""
    half = buckets // 2
    single = half // 2
    away = np.abs(ahead)
    # Float64 in between: numpy's own fp32 logarithm has other last bits where the CPU has other instructions.
    ratios = np.maximum(away, 1).astype(np.float32) / np.float32(single)
    steps = np.log(ratios.astype(np.float64)).astype(np.float32)
    share = steps / np.float32(math.log(MAX_DISTANCE / single)) * np.float32(half - single)
    far = np.minimum(single + np.maximum(share, 0).astype(np.int64), half - 1)
    found: npt.NDArray[np.integer] = np.where(ahead > 0, half, 0) + np.where(away < single, away, far)
    return found


@dataclass(frozen=True, slots=True)
class Scores:
    """What becomes of q.k: times `scale`, capped, less a slope a head times the distance, windowed.

    Not `causal`: keys that come after a row are seen too, in a window as far as those before it.  biases
    [buckets, heads] are added by distance.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    slopes: F32 | None = None
    causal: bool = True
    biases: F32 | None = None

    def of(self, products: F32, distance: npt.NDArray[np.integer]) -> F32:
        """Scores [heads, M, P] of q.k; -infinity where nothing is seen.  distance [M, P] back."""
        scores = products * np.float32(self.scale)
        if self.softcap is not None:
            cap = np.float32(self.softcap)
            scores = cap * apply(Function.TANH, scores / cap)
        if self.slopes is not None:
            scores = scores - self.slopes[:, None, None] * distance.astype(np.float32)
        if self.biases is not None:
            scores = scores + np.moveaxis(self.biases[distance_buckets(-distance, len(self.biases))], -1, 0)
        return np.where(self._hidden(distance), np.float32(-np.inf), scores)

    def _hidden(self, distance: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        if self.causal:
            return distance < 0 if self.window is None else (distance < 0) | (distance >= self.window)
        farthest = np.inf if self.window is None else self.window // 2
        return np.asarray(np.abs(distance) > farthest, np.bool_)


HADAMARD_STEP = 16
"""Elements that `hadamard` adds up one after the other, before it adds and subtracts sums of so many."""


def hadamard_order(n: int) -> int:
    """The largest power of two that divides n: so many of a head's elements are rotated together."""
    return n & -n


def hadamard(x: F32) -> F32:
    """x [..., n], its parts of `hadamard_order` elements times Sylvester's Hadamard matrix.

    The matrix has 1 and -1, so lengths grow by the square root of its order, and twice is the order times x.
    """
    order = hadamard_order(x.shape[-1])
    near = min(order, HADAMARD_STEP)
    signs = np.ones((1, 1), np.float32)
    while len(signs) < near:
        signs = np.block([[signs, signs], [signs, -signs]])
    parts = x.reshape(*x.shape[:-1], -1, near)
    out = np.zeros_like(parts)
    for j in range(near):
        out += parts[..., j : j + 1] * signs[j]
    half = near
    while half < order:
        a, b = np.moveaxis(out.reshape(*x.shape[:-1], -1, 2, half), -2, 0)
        out = np.stack([a + b, a - b], axis=-2)
        half *= 2
    return out.reshape(x.shape)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Keys or values of positions [P, kv_heads, head_dim]; of int8 each has a scale [P, kv_heads]."""

    elements: F32
    scale: F32 | None = None

    @classmethod
    def zeros(cls, positions: int, heads: int, head_dim: int, *, int8: bool) -> Vectors:
        """A cache for so many positions."""
        elements = np.zeros((positions, heads, head_dim), np.float32)
        return cls(elements, elements[:, :, 0].copy() if int8 else None)

    def put(self, positions: npt.NDArray[Any], vectors: F32) -> None:
        """Keeps vectors [M, kv_heads, head_dim] at these positions: of int8 each with a scale of its own."""
        if self.scale is None:
            self.elements[positions] = vectors
            return
        head_dim = vectors.shape[2]
        integers, scale = quantize_activations(vectors.reshape(-1, head_dim), head_dim)
        self.elements[positions] = integers.reshape(vectors.shape)
        self.scale[positions] = scale.reshape(vectors.shape[:2])

    def put_keys(self, positions: npt.NDArray[Any], keys: F32) -> None:
        """As `put`; of int8 they are `hadamard`'s, whose order their scales are divided by."""
        if self.scale is None:
            self.put(positions, keys)
            return
        self.put(positions, hadamard(keys))
        self.scale[positions] /= np.float32(hadamard_order(keys.shape[2]))

    def at(self, positions: npt.NDArray[Any]) -> Vectors:
        """Those of some positions."""
        return Vectors(self.elements[positions], None if self.scale is None else self.scale[positions])

    def for_heads(self, heads: int) -> tuple[F32, F32]:
        """Of each head that asks: elements [heads, P, head_dim] and scales [heads, 1, P], 1 without any."""
        positions, kv_heads, _ = self.elements.shape
        scale = np.ones((positions, kv_heads), np.float32) if self.scale is None else self.scale
        group = heads // kv_heads
        elements = np.repeat(self.elements.transpose(1, 0, 2), group, axis=0)
        return elements, np.repeat(scale.T[:, None], group, axis=0)


def attend(q: F32, keys: Vectors, values: Vectors, positions: I32, kind: Scores, compute: DType) -> F32:
    """Attention of one sequence's rows over its keys: [M, heads * head_dim].

    q [M, heads, head_dim]; keys and values of positions 0 .. P - 1.  Scales of keys come after the products;
    those of values go with the probabilities, which are rounded before they meet the values.  The denominator
    adds them unrounded and unscaled.  Queries are rotated as keys of int8 are.
    """
    rows, heads, head_dim = q.shape
    if keys.scale is not None:
        q = round_to(hadamard(q), compute)
    (k, key_scale), (v, value_scale) = keys.for_heads(heads), values.for_heads(heads)
    products = (q.transpose(1, 0, 2) @ k.transpose(0, 2, 1)) * key_scale
    scores = kind.of(products, positions[:, None] - np.arange(len(keys.elements)))
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    out = (round_to(weights * value_scale, compute) @ v) / weights.sum(axis=2, keepdims=True)
    return round_to(out.transpose(1, 0, 2).reshape(rows, heads * head_dim), compute)


def apply(function: Function, x: F32) -> F32:
    """function(x), unrounded.  GELU and tanh are the nearest fp32 to what they are in float64."""
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
    return out.astype(np.float32)


def activation(x: F32, function: Function, compute: DType) -> F32:
    """function(x)."""
    return round_to(apply(function, x), compute)


def gated(gate: F32, up: F32, function: Function, compute: DType) -> F32:
    """function(gate) * up."""
    return round_to(apply(function, gate) * up, compute)


def scale(x: F32, factor: float, compute: DType, by: F32 | None = None) -> F32:
    """x times a factor, which is first multiplied by each row's own, `by` [rows, 1], where there is one."""
    own = np.float32(factor) if by is None else np.float32(factor) * by
    return round_to(x * own, compute)


def add(a: F32, b: F32, compute: DType) -> F32:
    """a + b."""
    return round_to(a + b, compute)


def all_reduce_bound(parts: Sequence[F32], dtype: DType) -> npt.NDArray[np.float64]:
    """How far the sum of rounded partial sums may be from the unsplit sum, both rounded to `dtype`.

    parts: the unrounded partial sums, of one shape.  Half a unit in the last place of each of them, of
    their sum and of the unsplit sum; what fp32 itself loses is left out.
    """
    wide = np.asarray(parts, np.float64)
    total = np.abs(wide.sum(axis=0))
    rounded = _spacing(wide, dtype).sum(axis=0) / 2
    return np.asarray(rounded + (_spacing(total, dtype) + _spacing(total + rounded, dtype)) / 2)


def unit(dtype: DType) -> float:
    """One unit in the last place, relative to a number."""
    return float(2.0 ** -_GRIDS[dtype].mantissa_bits)
