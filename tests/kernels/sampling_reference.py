"""The reference sampler in numpy; the native sampler draws the same tokens.

Each row goes through these steps, in this order:

1. Reported log-probabilities are log_softmax of the model's logits.  A `chosen` token also has a rank: the
   number of tokens with logits as large, itself included.
2. Where the row has a mask, x of each token that is not allowed becomes -inf.  `bias_values` are added
   (-inf excludes a token).
3. Repetition penalty for every seen token: x / r where x > 0, else x * r (Keskar et al. 2019).  Then
   presence and frequency penalties for those seen in the output: x - presence - frequency * count.
4. Greedy: the largest x, the lowest id on a tie.  Temperatures below GREEDY_BELOW, 0 included, are greedy,
   and so is a row whose largest x / temperature is not finite.  Otherwise x = x / temperature.
5. Order: largest x first, then lowest id.  top_k keeps the first k.  Weights are exp(x - max x).
   top_p keeps the shortest beginning of that order whose weights reach top_p of the kept weights.
   min_p keeps weights >= min_p (the largest weight is 1).
6. The draw: the first kept token, by id, up to which the weights exceed `uniform(seed, position)` times
   their sum, in double precision.

NaN counts as -inf; where no logit is above -inf, token 0 is taken.  NaN is never reported among the best.
Rows whose logits contain a NaN or an infinity are reported as `overflowed`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corepipe.neuron.step import SamplingBatch, StepOutput

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

GREEDY_BELOW = np.float32(1e-30)
"""Lower temperatures are greedy: only equal logits, or a few below 1e-20, would share the draw."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """Returns the number in [0, 1) that decides the draw at `position`.

    It is the top 53 bits of splitmix64's finaliser over the seed, then over its result and the position
    (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators").
    """
    bits = _mix((_mix((seed + _GOLDEN) & _MASK) + _GOLDEN * (position + 1)) & _MASK)
    return float(bits >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def sample_reference(logits: F32, batch: SamplingBatch, masks: I32 | None = None) -> StepOutput:
    """Draws a token for each row of `logits` [R, V]; returns a StepOutput without logits, of 0 seconds.

    masks [K, mask_words(V)]: those of the rows that have one.
    """
    rows = len(logits)
    allowed = None if masks is None else allowed_tokens(masks, logits.shape[1])
    width = max(0, *batch.top_logprobs.tolist(), 0)
    tokens = np.zeros(rows, np.int32)
    logprobs = np.full(rows, np.nan, np.float32)
    ranks = np.zeros(rows, np.int32)
    top_ids = np.full((rows, width), -1, np.int32)
    top_logprobs = np.full((rows, width), np.nan, np.float32)
    for r in range(rows):
        mask = int(batch.masked[r])
        tokens[r] = _choose(logits[r], batch, r, None if allowed is None or mask < 0 else allowed[mask])
        wanted = int(batch.top_logprobs[r])
        if wanted < 0 and batch.chosen[r] < 0:
            continue
        logged = log_softmax(logits[r])
        logprobs[r] = logged[tokens[r]]
        if batch.chosen[r] >= 0:
            chosen = logits[r][tokens[r]]
            ranks[r] = np.count_nonzero(logits[r] >= (-np.inf if np.isnan(chosen) else chosen))
        best = _order(logits[r])[: max(wanted, 0)]
        best = best[~np.isnan(logits[r][best])]
        top_ids[r, : len(best)] = best
        top_logprobs[r, : len(best)] = logged[best]
    overflowed = np.flatnonzero(~np.isfinite(logits).all(axis=1)).tolist()
    return StepOutput(tokens, logprobs, top_ids, top_logprobs, None, 0.0, overflowed, ranks)


def allowed_tokens(masks: I32, vocab: int) -> Flags:
    """Unpacks masks [K, mask_words(vocab)] to a flag for each token [K, vocab]."""
    words = np.ascontiguousarray(masks.astype("<i4")).view(np.uint8)
    return np.unpackbits(words, axis=1, count=vocab, bitorder="little").astype(np.bool_)


def log_softmax(logits: F32) -> F64:
    """Returns log_softmax over the last axis in double precision; NaN counts as -inf."""
    x = np.where(np.isnan(logits), -np.inf, logits.astype(np.float64))
    top = x.max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        logged: F64 = x - (top + np.log(np.exp(x - top).sum(axis=-1, keepdims=True)))
    return logged


def _choose(logits: F32, batch: SamplingBatch, r: int, allowed: Flags | None) -> int:
    if batch.chosen[r] >= 0:
        return int(batch.chosen[r])
    if allowed is not None:
        logits = np.where(allowed, logits, np.float32(-np.inf))
    x = np.where(np.isnan(adjusted := _adjust(logits, batch, r)), np.float32(-np.inf), adjusted)
    temperature = batch.temperature[r]
    with np.errstate(over="ignore"):
        if temperature < GREEDY_BELOW or not np.isfinite(x.max() / temperature):
            return int(np.argmax(x))
        x = x / temperature
    return _draw(x, batch, r)


def _adjust(logits: F32, batch: SamplingBatch, r: int) -> F32:
    """Applies the bias, then the penalties, in fp32."""
    x = logits.copy()
    bias = slice(batch.bias_offsets[r], batch.bias_offsets[r + 1])
    np.add.at(x, batch.bias_ids[bias], batch.bias_values[bias])
    seen = slice(batch.seen_offsets[r], batch.seen_offsets[r + 1])
    ids, counts = batch.seen_ids[seen], batch.seen_counts[seen].astype(np.float32)
    y = x[ids]
    y = np.where(y > 0, y / batch.repetition[r], y * batch.repetition[r])
    x[ids] = np.where(counts > 0, y - batch.presence[r] - batch.frequency[r] * counts, y)
    return x


def _order(x: F32) -> npt.NDArray[np.intp]:
    """Returns the ids, largest logit first, then lowest id."""
    return np.lexsort((np.arange(len(x)), -x))


def _draw(x: F32, batch: SamplingBatch, r: int) -> int:
    order = _order(x)
    if batch.top_k[r] > 0:
        order = order[: batch.top_k[r]]
    with np.errstate(over="ignore"):
        weights = np.exp(x - x.max())
    if batch.top_p[r] < 1:
        reached = np.cumsum(weights[order], dtype=np.float64)
        order = order[: int(np.searchsorted(reached, float(batch.top_p[r]) * reached[-1])) + 1]
    kept = np.sort(order[weights[order] >= batch.min_p[r]])
    reached = np.cumsum(weights[kept], dtype=np.float64)
    chance = uniform(int(batch.seed[r]), int(batch.position[r]))
    drawn = int(np.searchsorted(reached, chance * reached[-1], side="right"))
    last = int(np.flatnonzero(weights[kept])[-1])
    return int(kept[min(drawn, last)])
