"""Rotary frequencies, in fp32 and in the order of operations of Hugging Face transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from corepipe.neuron.numerics import elementary
from corepipe.neuron.values import RopeSpec

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base and scaling of the rotary embedding.

    linear: all frequencies over `factor` (Chen et al. 2023). llama3: only the long wavelengths, with a smooth
    transition (Llama 3.1's model card). yarn: Peng et al. 2023, section 3. `freq_factors`, one a frequency,
    divide the default frequencies: GGUF files state llama3's scaling so, and longrope (Ding et al. 2024) is
    the same with an attention factor.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] | None = None

    def spec(self, head_dim: int) -> RopeSpec:
        """Returns the `head_dim / 2` scaled frequencies and the factor of cos and sin."""
        if self.kind == "yarn":
            return RopeSpec(_values(_yarn(self, head_dim)), self._yarn_attention_factor())
        if self.kind == "longrope":
            wavelengths = np.array(self.freq_factors, np.float32) * _wavelengths(self.theta, head_dim)
            return RopeSpec(_values(np.float32(1.0) / wavelengths), self.attention_factor or 1.0)
        inv_freq: F32 = np.float32(1.0) / _wavelengths(self.theta, head_dim)
        if self.kind == "linear":
            inv_freq = np.divide(inv_freq, np.float32(self.factor))
        elif self.kind == "llama3":
            inv_freq = _llama3(self, inv_freq)
        if self.freq_factors is not None:
            inv_freq = np.divide(inv_freq, np.array(self.freq_factors, np.float32))
        return RopeSpec(_values(inv_freq))

    def scores_factor(self) -> float:
        """Returns DeepSeek's additional factor of the scores, where yarn scales long contexts."""
        if self.kind != "yarn" or not self.mscale_all_dim:
            return 1.0
        return _mscale(self.factor, self.mscale_all_dim) ** 2

    def _yarn_attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _mscale(self.factor, self.mscale) / _mscale(self.factor, self.mscale_all_dim)
        return _mscale(self.factor, 1.0)


def _values(inv_freq: F32) -> tuple[float, ...]:
    return tuple(inv_freq.tolist())


def _wavelengths(theta: float, dim: int) -> F32:
    """Returns theta ** (2i / dim); the exponent is rounded to fp32 first, as in transformers."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    base = float(np.float32(theta))
    return np.array([elementary.power(base, float(exponent)) for exponent in exponents], np.float32)


def _llama3(rope: RopeConfig, inv_freq: F32) -> F32:
    trained, low, high = rope.original_max_positions, rope.low_freq_factor, rope.high_freq_factor
    wavelength: F32 = np.float32(2 * math.pi) / inv_freq
    scaled = np.where(wavelength > trained / low, inv_freq / rope.factor, inv_freq)
    smooth = (trained / wavelength - low) / (high - low)
    between = (1 - smooth) * scaled / rope.factor + smooth * scaled
    medium = (wavelength >= trained / high) & (wavelength <= trained / low)
    return np.where(medium, between, scaled).astype(np.float32)


def _mscale(scale: float, mscale: float) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * elementary.log(scale) + 1.0


def _yarn(rope: RopeConfig, dim: int) -> F32:
    wavelengths = _wavelengths(rope.theta, dim)
    extrapolated = np.float32(1.0) / wavelengths
    interpolated = np.float32(1.0) / (np.float32(rope.factor) * wavelengths)
    low, high = _correction_range(rope, dim)
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1.0) - np.clip(ramp, 0, 1)
    mixed: F32 = (interpolated * (1 - keep) + extrapolated * keep).astype(np.float32)
    return mixed


def _correction_range(rope: RopeConfig, dim: int) -> tuple[float, float]:
    """Returns the frequencies (indices) between which the ramp from extrapolation to interpolation runs."""

    def index(rotations: float) -> float:
        ratio = rope.original_max_positions / (rotations * 2 * math.pi)
        return dim * elementary.log(ratio) / (2 * elementary.log(rope.theta))

    low, high = index(rope.beta_fast), index(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high
