"""Conversions of a model's outputs for clients: vectors of length 1, and probabilities from scores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corepipe.models.tasks import ScoreActivation

F32 = npt.NDArray[np.float32]

LEAST_NORM = 1e-12
"""The least divisor, as in sentence-transformers: a vector of zeros stays one."""


def normalized(vectors: F32) -> F32:
    """Scales rows to length 1 [rows, width]; the lengths are added up in float64."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(-1, keepdims=True))
    unit: F32 = (vectors / np.maximum(lengths, LEAST_NORM)).astype(np.float32)
    return unit


def activated(scores: F32, activation: ScoreActivation) -> F32:
    """Applies an activation to rows of scores [rows, labels], added up in float64."""
    wide = scores.astype(np.float64)
    if activation is ScoreActivation.SOFTMAX:
        powers = np.exp(wide - wide.max(-1, keepdims=True))
        wide = powers / powers.sum(-1, keepdims=True)
    elif activation is ScoreActivation.SIGMOID:
        small = np.exp(-np.abs(wide))  # never overflows
        wide = np.where(wide >= 0, 1, small) / (1 + small)
    return wide.astype(np.float32)
