"""The reference executor's attention equals definitions written another way: loops, signs, the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from corepipe.neuron.formats import DType
from corepipe.neuron.numerics.attention import Tempering, alibi_slopes
from tests.reference.arithmetic import round_to
from tests.reference.attention import AttentionScores, HeadVectors, attend, hadamard, hadamard_order


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("slopes", [None, [1, 0.5, 0.25, 2]])
@pytest.mark.parametrize(("window", "chunked"), [(None, False), (1, False), (3, False), (4, True), (1, True)])
def test_attention_against_loops(window, chunked, slopes, softcap):
    q, keys, values = normal(3, 4, 8), normal(6, 2, 8, seed=1), normal(6, 2, 8, seed=2)
    positions = np.array([3, 4, 5], np.int32)
    kind = AttentionScores(
        0.5, window, softcap, None if slopes is None else np.float32(slopes), chunked=chunked
    )
    got = attend(q, HeadVectors(keys), HeadVectors(values), positions, kind, DType.FP32)
    for m, position in enumerate(positions):
        seen = range(0 if window is None else max(0, position + 1 - window), position + 1)
        if chunked:
            seen = [j for j in range(position + 1) if j // window == position // window]
        for h in range(4):
            scores = [0.5 * float(q[m, h] @ keys[j, h // 2]) for j in seen]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            if slopes is not None:
                scores = [s - slopes[h] * (position - j) for s, j in zip(scores, seen, strict=True)]
            p = np.exp(scores)
            expected = (p / p.sum()) @ values[list(seen), h // 2]
            np.testing.assert_allclose(got[m, 8 * h : 8 * h + 8], expected, rtol=1e-4, atol=1e-6)


def sylvester(order: int) -> np.ndarray:
    """Returns Sylvester's matrix by its definition: 1 or -1 by the common bits of row and column."""
    return np.array([[(-1) ** (i & j).bit_count() for j in range(order)] for i in range(order)], np.float64)


@pytest.mark.parametrize(
    ("size", "order"), [(1, 1), (33, 1), (6, 2), (40, 8), (80, 16), (96, 32), (256, 256)]
)
def test_parts_of_a_head_are_rotated(size, order):
    x = normal(5, 3, size)
    expected = (x.reshape(5, 3, -1, order).astype(np.float64) @ sylvester(order)).reshape(x.shape)
    np.testing.assert_allclose(hadamard(x), expected, rtol=0, atol=order * 1e-6)
    np.testing.assert_allclose(hadamard(hadamard(x)), order * x, rtol=0, atol=order * 4e-6)


def kept(vectors, *, keys):
    """Returns an int8 cache with these vectors, and the numbers that its integers stand for."""
    cache = HeadVectors.zeros(*vectors.shape, int8=True)
    (cache.put_keys if keys else cache.put)(np.arange(len(vectors)), vectors)
    found = cache.elements * cache.scale[..., None]
    return cache, hadamard(found) if keys else found


def test_an_outlier_does_not_take_the_steps_of_a_keys_other_elements():
    """The others are 0.010 off, which would be 0.045 without a rotation."""
    vectors = normal(500, 1, 64)
    vectors[..., 7] *= 20
    others = np.arange(64) != 7
    off = {keys: (kept(vectors, keys=keys)[1] - vectors)[..., others] for keys in (True, False)}
    assert np.sqrt(np.mean(off[True] ** 2)) < 0.015 < 0.04 < np.sqrt(np.mean(off[False] ** 2))


@pytest.mark.parametrize("head_dim", [33, 64, 80])
def test_a_cache_of_int8_loses_half_a_step_of_each_element(head_dim):
    """Attention over the cache equals attention over the dequantised numbers, with queries that are not
    rotated."""
    q, keys, values = normal(3, 4, head_dim), normal(6, 2, head_dim, seed=1), normal(6, 2, head_dim, seed=2)
    positions, kind = np.array([3, 4, 5], np.int32), AttentionScores(0.5)
    (own_keys, k), (own_values, v) = kept(keys, keys=True), kept(values, keys=False)
    order = hadamard_order(head_dim)
    assert np.all(np.abs(k - keys) <= own_keys.scale[..., None] * order / 2 + 1e-6)
    assert np.all(np.abs(v - values) <= own_values.scale[..., None] / 2 + 1e-6)
    got = attend(q, own_keys, own_values, positions, kind, DType.FP32)
    np.testing.assert_allclose(
        got, attend(q, HeadVectors(k), HeadVectors(v), positions, kind, DType.FP32), atol=2e-5
    )


def test_probabilities_are_rounded_for_the_values_only():
    """Two keys with weights 1 and p: the value of the second counts round(p) / (1 + p) times."""
    score = np.linspace(-2, -0.1, 50, dtype=np.float32)[:, None]  # one for each head
    p = np.exp(score)
    q, values = np.ones((1, 50, 1), np.float32), np.stack([0 * score, 1 + 0 * score])
    keys = np.stack([0 * score, score])
    got = attend(
        q, HeadVectors(keys), HeadVectors(values), np.array([1], np.int32), AttentionScores(1.0), DType.BF16
    )
    expected = round_to(round_to(p, DType.BF16) / (1 + p), DType.BF16)
    np.testing.assert_array_equal(got[0], expected[:, 0])
    assert np.any(got[0] != round_to(p / (1 + p), DType.BF16)[:, 0])


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [*(2**-i for i in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_slopes_of_alibi(heads, slopes):
    """Press et al. 2022, section 3; for other numbers of heads as BLOOM and MPT have them."""
    assert alibi_slopes(heads) == pytest.approx(slopes, rel=1e-7)


def test_queries_are_sharper_from_the_last_position_of_a_stretch_on():
    """A query's own position is among those that have passed, as in transformers' Llama 4."""
    found = Tempering(16, 0.5).factors(np.array([0, 14, 15, 30, 31]))
    np.testing.assert_allclose(found, 1 + 0.5 * np.log([1, 1, 2, 2, 3]), rtol=1e-6)
