"""What a model computed for a prompt, as numbers: vectors cut and normalised, scores made probabilities."""

from __future__ import annotations

from base64 import b64encode
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from corepipe.models.tasks import Activation
from corepipe.serving.api.http_errors import overflowed
from corepipe.serving.messages import Output

F32 = npt.NDArray[np.float32]
Encoding = Literal["float", "base64"]
_LEAST_NORM = 1e-12
"""As in sentence-transformers: a vector of zeros stays one."""


def array(output: Output) -> F32:
    """[rows, width].  Raises ApiError (500) for what are no numbers: JSON has no word for them."""
    found = np.frombuffer(output.values, "<f4")
    if not np.isfinite(found).all():
        raise overflowed("The model computed infinity or NaN.")
    return found.reshape(output.rows, -1)


def normalized(vectors: F32) -> F32:
    """Rows of length 1 [rows, width]; the lengths are added up in float64."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(-1, keepdims=True))
    unit: F32 = (vectors / np.maximum(lengths, _LEAST_NORM)).astype(np.float32)
    return unit


def activated(scores: F32, activation: Activation) -> F32:
    """Of rows of scores [rows, labels], added up in float64."""
    wide = scores.astype(np.float64)
    if activation is Activation.SOFTMAX:
        powers = np.exp(wide - wide.max(-1, keepdims=True))
        wide = powers / powers.sum(-1, keepdims=True)
    elif activation is Activation.SIGMOID:
        small = np.exp(-np.abs(wide))  # never overflows
        wide = np.where(wide >= 0, 1, small) / (1 + small)
    return wide.astype(np.float32)


def to_json(values: F32, encoding: Encoding) -> bytes:
    """A list of numbers, of lists of them, or the string that stands for their bytes, little-endian fp32."""
    if encoding == "base64":
        return b'"' + b64encode(values.astype("<f4", copy=False).tobytes()) + b'"'
    return msgspec.json.encode(values.tolist())
