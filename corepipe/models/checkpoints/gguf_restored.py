"""Restores tensors that llama.cpp's converter changes as a whole.

Its changes to rows and gains are in `gguf_families`; here are those that need all of a tensor, or two of
them: other dimensions, rates in place of their logarithms, and separate matrices of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RestoredTensor:
    """The restoration of a tensor of the original. shape: its shape, from the shapes of the file's tensors.
    made: its values, from their values; raises ValueError with a reason for values that the converter
    cannot have written."""

    shape: Callable[..., Shape]
    made: Callable[..., F32]


def _reshaped(shape: Callable[[Shape], Shape]) -> RestoredTensor:
    return RestoredTensor(shape, lambda values: values.reshape(shape(values.shape)))


def _flat(shape: Shape) -> Shape:
    return (prod(shape),)


def _depthwise(shape: Shape) -> Shape:
    """Changes [channels, taps] to [channels, 1, taps]."""
    return (shape[0], 1, *shape[1:])


def _logarithms(rates: F32) -> F32:
    """Returns logarithms l of Mamba's rates, which files keep as -exp(l): exact ones where they exist in
    fp32.

    The fp32 nearest to the logarithm is off by half of its last bit, and so may the rate be.
    """
    positive = -rates.reshape(-1).astype(np.float64)
    if not (positive > 0).all():
        raise ValueError(f"holds {-positive.min():g}: rates must be negative")
    near = np.log(positive).astype(np.float32)
    for other in (np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))):
        missed = np.exp(near.astype(np.float64)).astype(np.float32) != positive
        again = np.exp(other.astype(np.float64)).astype(np.float32) == positive
        near = np.where(missed & again, other, near)
    return near


def _keys_and_values_shape(keys: Shape, values: Shape) -> Shape:
    (heads, rank, key), (of_values, value, other) = keys, values
    if (of_values, other) != (heads, rank):
        raise ValueError("other heads, or another latent")
    return heads * (key + value), rank


def _keys_and_values(keys: F32, values: F32) -> F32:
    """Joins for each head the matrix of its key, which the file has as [rank, key], and that of its value."""
    both = np.concatenate((keys.swapaxes(1, 2), values), axis=1)
    return both.reshape(-1, both.shape[-1])


TRANSPOSED = RestoredTensor(lambda shape: shape[::-1], lambda values: np.ascontiguousarray(values.T))
RESTORED: Mapping[str, RestoredTensor] = MappingProxyType(
    {
        "ffn_gate_inp_shexp.weight": _reshaped(lambda shape: (1, shape[-1])),
        "ssm_a": RestoredTensor(_flat, _logarithms),
        "ssm_d": _reshaped(_flat),
        "ssm_norm.weight": _reshaped(_flat),
        "ssm_conv1d.weight": _reshaped(_depthwise),
    }
)
"""Restored tensors by their names in a layer, with weight or bias."""
TOGETHER: Mapping[tuple[str, str], tuple[str, RestoredTensor]] = MappingProxyType(
    {
        ("self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight"): (
            "self_attn.kv_b_proj.weight",
            RestoredTensor(_keys_and_values_shape, _keys_and_values),
        )
    }
)
"""Names of two tensors of a layer, and the name of the one tensor that they hold."""
