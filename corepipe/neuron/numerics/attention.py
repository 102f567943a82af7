"""The reference executor's attention in numpy: how scores are made, and a cache of keys and values.

As in `arithmetic`, which it uses, this is the definition of correct results, and it is not batch invariant.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from corepipe.neuron.formats import DType, Function
from corepipe.neuron.numerics import elementary
from corepipe.neuron.numerics.arithmetic import F32, I32, apply, quantize_activations, round_to


@functools.cache
def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Returns how much each head's scores fall per position: 2 ** (-most * i / heads), i from 1 (Press et al.
    2022).

    Where `heads` is no power of two, those of the next smaller one come first, then every second one of the
    next larger one.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [elementary.power(2.0, -most * i / power) for i in range(1, power + 1)]
    between = [elementary.power(2.0, -most * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return tuple(float(np.float32(slope)) for slope in (*slopes, *between)[:heads])


MAX_DISTANCE = 128
"""The distance from which on all distances share a bucket (T5Config's and MPNet's default)."""


def distance_buckets(ahead: npt.NDArray[np.integer], buckets: int) -> npt.NDArray[np.integer]:
    """Returns the bucket of biases for a key that lies `ahead` positions after its row (negative: before it).

    Half of the buckets are for keys before the row; in either half the first half are single distances, the
    others ranges that grow with the logarithm (Raffel et al. 2020; transformers,
    MPNetEncoder.relative_position_bucket).
    """
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


class Tempering(NamedTuple):
    """Sharper attention for later queries: a query is multiplied by 1 + by * ln(1 + n), where n is how many
    times `every` positions have passed, its own among them (Nakanishi 2025, arXiv 2501.19399; Llama 4)."""

    every: float
    by: float

    def factors(self, positions: npt.NDArray[np.integer]) -> F32:
        """Returns the factors of queries at these positions."""
        times = np.floor((positions.astype(np.float32) + np.float32(1)) / np.float32(self.every))
        # Float64 in between, as in `distance_buckets`.
        logs = np.log1p(times.astype(np.float64)).astype(np.float32)
        return np.asarray(logs * np.float32(self.by) + np.float32(1), np.float32)


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """The computation of scores from q.k: times `scale`, capped, less a slope per head times the distance,
    windowed.

    Not `causal`: a row also attends to later keys, with a window as far as to earlier ones.  biases [buckets,
    heads] are added by distance.  sinks [heads] are scores without a key: only the softmax counts them.
    `chunked`: a row attends from the last multiple of `window` on.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    slopes: F32 | None = None
    causal: bool = True
    biases: F32 | None = None
    sinks: F32 | None = None
    chunked: bool = False

    def of(self, products: F32, positions: I32) -> F32:
        """Returns the scores [heads, M, P] of q.k; -infinity where a row does not attend.  positions [M] of
        the queries."""
        distance = positions[:, None] - np.arange(products.shape[2])
        scores = products * np.float32(self.scale)
        if self.softcap is not None:
            cap = np.float32(self.softcap)
            scores = cap * apply(Function.TANH, scores / cap)
        if self.slopes is not None:
            scores = scores - self.slopes[:, None, None] * distance.astype(np.float32)
        if self.biases is not None:
            scores = scores + np.moveaxis(self.biases[distance_buckets(-distance, len(self.biases))], -1, 0)
        return np.where(self._hidden(positions, distance), np.float32(-np.inf), scores)

    def denominator(self, weights: F32, most: F32) -> F32:
        """Returns the sums [heads, M, 1] of weights that are relative to each row's largest score, `most`."""
        total: F32 = weights.sum(axis=2, keepdims=True)
        if self.sinks is None:
            return total
        with np.errstate(over="ignore"):  # an infinite sink makes all other weights 0
            return np.asarray(total + np.exp(self.sinks[:, None, None] - most), np.float32)

    def _hidden(self, positions: I32, distance: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        if not self.causal:
            farthest = np.inf if self.window is None else self.window // 2
            return np.asarray(np.abs(distance) > farthest, np.bool_)
        if self.window is None:
            return distance < 0
        seen = positions[:, None] % self.window + 1 if self.chunked else self.window
        return np.asarray((distance < 0) | (distance >= seen), np.bool_)


HADAMARD_STEP = 16
"""Elements that `hadamard` adds up one after the other, before it adds and subtracts such sums."""


def hadamard_order(n: int) -> int:
    """Returns the largest power of two that divides n: the number of elements of a head that are rotated
    together."""
    return n & -n


def hadamard(x: F32) -> F32:
    """Multiplies the parts of `hadamard_order` elements of x [..., n] by Sylvester's Hadamard matrix.

    The matrix consists of 1 and -1, so lengths grow by the square root of its order, and applying it twice
    gives the order times x.
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
class HeadVectors:
    """Keys or values of positions [P, kv_heads, head_dim]; in int8 each has a scale [P, kv_heads]."""

    elements: F32
    scale: F32 | None = None

    @classmethod
    def zeros(cls, positions: int, heads: int, head_dim: int, *, int8: bool) -> HeadVectors:
        """Returns a cache for so many positions."""
        elements = np.zeros((positions, heads, head_dim), np.float32)
        return cls(elements, elements[:, :, 0].copy() if int8 else None)

    def put(self, positions: npt.NDArray[Any], vectors: F32) -> None:
        """Stores vectors [M, kv_heads, head_dim] at these positions; in int8 each with a scale of its own."""
        if self.scale is None:
            self.elements[positions] = vectors
            return
        head_dim = vectors.shape[2]
        integers, scale = quantize_activations(vectors.reshape(-1, head_dim), head_dim)
        self.elements[positions] = integers.reshape(vectors.shape)
        self.scale[positions] = scale.reshape(vectors.shape[:2])

    def put_keys(self, positions: npt.NDArray[Any], keys: F32) -> None:
        """Stores keys as `put` does; in int8 their `hadamard` is stored, with scales divided by its order."""
        if self.scale is None:
            self.put(positions, keys)
            return
        self.put(positions, hadamard(keys))
        self.scale[positions] /= np.float32(hadamard_order(keys.shape[2]))

    def at(self, positions: npt.NDArray[Any]) -> HeadVectors:
        """Returns the vectors of some positions."""
        return HeadVectors(self.elements[positions], None if self.scale is None else self.scale[positions])

    def first(self, elements: int) -> HeadVectors:
        """Returns the first so many elements of each vector."""
        return HeadVectors(self.elements[:, :, :elements], self.scale)

    def for_heads(self, heads: int) -> tuple[F32, F32]:
        """Returns for each query head the elements [heads, P, head_dim] and scales [heads, 1, P]; 1 where
        there are no scales."""
        positions, kv_heads, _ = self.elements.shape
        scale = np.ones((positions, kv_heads), np.float32) if self.scale is None else self.scale
        group = heads // kv_heads
        elements = np.repeat(self.elements.transpose(1, 0, 2), group, axis=0)
        return elements, np.repeat(scale.T[:, None], group, axis=0)


def attend(
    q: F32,
    keys: HeadVectors,
    values: HeadVectors,
    positions: I32,
    kind: AttentionScores,
    compute: DType,
    *,
    rotated: bool = True,
) -> F32:
    """Computes the attention of one sequence's rows over its keys: [M, heads * the size of a value].

    q [M, heads, head_dim]; keys and values of positions 0 .. P - 1.  Scales of keys are applied after the
    products; those of values multiply the probabilities, which are rounded before they are multiplied by the
    values.  The denominator adds them unrounded and unscaled.  Queries are rotated as int8 keys are, where
    those are `rotated`.
    """
    rows, heads, _ = q.shape
    if keys.scale is not None and rotated:
        q = round_to(hadamard(q), compute)
    (k, key_scale), (v, value_scale) = keys.for_heads(heads), values.for_heads(heads)
    products = (q.transpose(1, 0, 2) @ k.transpose(0, 2, 1)) * key_scale
    scores = kind.of(products, positions)
    most = scores.max(axis=2, keepdims=True)
    weights = np.exp(scores - most)
    out = (round_to(weights * value_scale, compute) @ v) / kind.denominator(weights, most)
    return round_to(out.transpose(1, 0, 2).reshape(rows, -1), compute)
