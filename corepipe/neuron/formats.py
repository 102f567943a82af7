"""Number formats: how weights, activations and results are stored, and how they are rounded."""

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
        """Bytes of so many elements; a microscaling format has a scale of 8 bits for each MX_GROUP."""
        if self not in _MX_BITS:
            return elements * self.bytes
        return -(-elements * _MX_BITS[self] // 8) + -(-elements // MX_GROUP)


_ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


_MX_BITS = {DType.MXFP8: 8, DType.MXFP4: 4}


MX_GROUP = 32
"""Elements that share a scale (nki/guides/architecture/trainium3_arch.rst; OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True, slots=True)
class Format:
    """What a Linear stores, what its input is converted to, and what everything else is kept in."""

    name: str
    weights: DType
    activations: DType
    compute: DType

    @property
    def held(self) -> DType:
        """What a core's memory has of a matrix: integers of four bits, of which no Neuron software knows, are
        widened when a model is loaded."""
        return self.compute if self.weights is DType.INT4 else self.weights

    @property
    def multiplied(self) -> DType:
        """What TensorE multiplies: int8 weights alone are converted to the activations' format first."""
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
"""Formats that executors compute."""


TIMED_FORMATS: dict[str, Format] = FORMATS | {
    f.name: f
    for f in (
        Format("fp8", DType.FP8_E4M3, DType.FP8_E4M3, DType.BF16),
        Format("mxfp8", DType.MXFP8, DType.MXFP8, DType.BF16),
        Format("mxfp4", DType.MXFP4, DType.MXFP8, DType.BF16),  # widened to MXFP8: fewer bytes, no more FLOPs
    )
}
"""Formats that the cost model times: those, and what only devices compute."""


class Function(StrEnum):
    """Functions of one element.

    clamped_swish: x sigmoid(1.702 x) of what is no more than `SWISH_LIMIT`; what it gates is held within that
    on both sides, and 1 more (gpt-oss).
    """

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # GELU's approximation with tanh (Hendrycks & Gimpel 2016)
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    CLAMPED_SWISH = "clamped_swish"


SWISH_LIMIT, SWISH_GAIN = 7.0, 1.702
"""Of `clamped_swish`."""
