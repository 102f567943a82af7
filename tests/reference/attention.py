"""Attention of the reference executor, in numpy: how scores are made, and a cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.neuron.formats import DType, Function
from corepipe.neuron.numerics.arithmetic import F32, I32
from corepipe.neuron.numerics.attention import distance_buckets
from tests.reference.arithmetic import apply, quantize_activations, round_to


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
