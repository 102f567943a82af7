"""Number formats: storage and rounding of weights, activations and results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DType(StrEnum):
    """Number formats of a NeuronCore; the value is the name used in flags and reports."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    INT4 = "int4"
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"

    @property
    def bytes(self) -> int:
        """Storage size of one element, in bytes.  Raises KeyError for int4 and microscaling formats."""
        return _ELEMENT_BYTES[self.value]

    def stored(self, elements: int) -> int:
        """Returns the bytes of so many elements; a microscaling format has an 8-bit scale per MX_GROUP
        elements."""
        if self not in _MX_BITS:
            return elements * self.bytes
        return -(-elements * _MX_BITS[self] // 8) + -(-elements // MX_GROUP)


_ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


_MX_BITS = {DType.MXFP8: 8, DType.MXFP4: 4}


MX_GROUP = 32
"""Elements that share a scale (nki/guides/architecture/trainium3_arch.rst; OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True, slots=True)
class Format:
    """A number format of a deployment.

    weights: the dtype that a Linear stores.  activations: the dtype that its input is converted to.  compute:
    the dtype of all other values.
    """

    name: str
    weights: DType
    activations: DType
    compute: DType

    @property
    def held(self) -> DType:
        """The dtype of a matrix in a core's memory: four-bit integers, which no Neuron software supports, are
        widened when a model is loaded."""
        return self.compute if self.weights is DType.INT4 else self.weights

    @property
    def multiplied(self) -> DType:
        """The dtype that TensorE multiplies: int8 weights alone are first converted to the activations'
        format."""
        if self.weights is DType.INT4:
            return self.compute
        return self.weights if self.weights is self.activations else self.activations


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp32", DType.FP32, DType.FP32, DType.FP32),
        Format("bf16", DType.BF16, DType.BF16, DType.BF16),
        Format("int8", DType.INT8, DType.INT8, DType.BF16),
        Format("int8-weights", DType.INT8, DType.BF16, DType.BF16),
        Format("int4-weights", DType.INT4, DType.INT8, DType.BF16),
    )
}
"""Formats that the executors compute."""


TIMED_FORMATS: dict[str, Format] = FORMATS | {
    f.name: f
    for f in (
        Format("fp8", DType.FP8_E4M3, DType.FP8_E4M3, DType.BF16),
        Format("mxfp8", DType.MXFP8, DType.MXFP8, DType.BF16),
        Format("mxfp4", DType.MXFP4, DType.MXFP8, DType.BF16),  # widened to MXFP8: fewer bytes, no more FLOPs
    )
}
"""Formats that the cost model times: `FORMATS`, and those that only devices compute."""


class Function(StrEnum):
    """Functions of one element.

    clamped_swish (gpt-oss): x sigmoid(1.702 x), with x limited to `SWISH_LIMIT` from above; the value that it
    multiplies is limited to that on both sides and then increased by 1.
    """

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # GELU's approximation with tanh (Hendrycks & Gimpel 2016)
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    CLAMPED_SWISH = "clamped_swish"


SWISH_LIMIT, SWISH_GAIN = 7.0, 1.702
"""Limit and gain of `clamped_swish`."""
