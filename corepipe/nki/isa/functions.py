"""Activation functions that numpy does not have, in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Wide = npt.NDArray[np.float64]

_ERFC = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)
"""Coefficients of a polynomial in t = 1 / (1 + |x| / 2), the highest first: erfc(|x|) = t exp(-x^2 + p(t))
within 1.2e-7 of its value (W. H. Press et al., Numerical Recipes, 6.2)."""

_TANH_SCALE = float(np.sqrt(2 / np.pi))


def _erfc(x: Wide) -> Wide:
    t = 1 / (1 + np.abs(x) / 2)
    tail: Wide = t * np.exp(np.polyval(_ERFC, t) - x * x)
    return np.where(x >= 0, tail, 2 - tail)


def _wide(function: Any) -> Any:
    """Returns a function that computes in fp64 and gives fp32."""
    return lambda x: function(np.asarray(x, np.float64)).astype(np.float32)


def _normal(x: Wide) -> Wide:
    """Returns the share of a normal distribution that is below x."""
    return _erfc(-x / np.sqrt(2)) / 2


def _sigmoid(x: Wide) -> Wide:
    small: Wide = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1 + small)


def _tanh_gate(x: Wide) -> Wide:
    return (1 + np.tanh(_TANH_SCALE * (x + 0.044715 * x**3))) / 2


def _sigmoid_gated_slope(x: Wide, factor: float) -> Wide:
    """Returns the derivative of x sigmoid(factor x)."""
    gate = _sigmoid(factor * x)
    return gate + factor * x * gate * (1 - gate)


erf = _wide(lambda x: 1 - _erfc(x))
sigmoid = _wide(_sigmoid)
softplus = _wide(lambda x: np.logaddexp(0, x))
gelu = _wide(lambda x: x * _normal(x))
gelu_dx = _wide(lambda x: _normal(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))
gelu_apprx_tanh = _wide(lambda x: x * _tanh_gate(x))
gelu_apprx_sigmoid_dx = _wide(lambda x: _sigmoid_gated_slope(x, 1.702))
silu_dx = _wide(lambda x: _sigmoid_gated_slope(x, 1.0))
