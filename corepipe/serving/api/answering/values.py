"""The values that a model computed for a prompt, as an array and as JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import Literal

import msgspec
import numpy as np

from corepipe.answers.values import F32
from corepipe.engine.messages import Output
from corepipe.serving.api.http.errors import overflowed

VectorEncoding = Literal["float", "base64"]


def array(output: Output) -> F32:
    """Returns values, [rows, width].  Raises ApiError (500) for infinity or NaN, which JSON does not have."""
    found = np.frombuffer(output.values, "<f4")
    if not np.isfinite(found).all():
        raise overflowed("The model computed infinity or NaN.")
    return found.reshape(output.rows, -1)


def to_json(values: F32, encoding: VectorEncoding) -> bytes:
    """Returns JSON: a (nested) list of numbers, or a base64 string of their bytes, little-endian fp32."""
    if encoding == "base64":
        return b'"' + b64encode(values.astype("<f4", copy=False).tobytes()) + b'"'
    return msgspec.json.encode(values.tolist())
