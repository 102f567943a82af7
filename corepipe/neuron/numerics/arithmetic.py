"""Weights in eight bits, and the tables of rotary embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corepipe.neuron.numerics import elementary
from corepipe.neuron.values import RopeSpec

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]

INT8_MAX = 127.0


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


def rope_tables(rope: RopeSpec, max_positions: int) -> tuple[F32, F32]:
    """Returns cos and sin, each [max_positions, rotary_dim / 2] fp32, times the attention factor.

    Angles are products in fp32, as transformers computes them; their cosines are the nearest fp32.
    """
    angles = np.outer(np.arange(max_positions, dtype=np.float32), np.asarray(rope.inv_freq, np.float32))
    factor = np.float32(rope.attention_factor)
    cos, sin = elementary.cos_sin(angles.astype(np.float64))
    return cos.astype(np.float32) * factor, sin.astype(np.float32) * factor
