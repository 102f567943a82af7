"""Contracts of Ops that compute each row by itself: norms, gated activations and mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from corepipe.neuron.formats import Format
from corepipe.neuron.ops import Experts, GatedActivation, RMSNorm, Scoring
from corepipe.neuron.timing.kernel_cost import KernelAxis
from corepipe.nki.ops.contract import (
    DTYPES,
    Array,
    Contract,
    Keyword,
    Sizes,
    Source,
    activated,
    as_f32,
    divided,
    plain,
    refused,
)

MOST_COMPARED = 1 << 27
"""Elements of the experts' weights up to which all experts are compared; of more, as many as fit."""


@dataclass(frozen=True, slots=True)
class RMSNormContract(Contract):
    """x [rows, n] and gain [n] give x / rms(x) * gain, of a row; eps is a keyword.

    A norm of heads, or of groups, has a row for each of them.
    """

    name = "rmsnorm"
    kinds = RMSNorm

    n: int
    eps: float
    parts: int
    lnc: int

    @classmethod
    def of(cls, op: RMSNorm, fmt: Format, lnc: int) -> Self:
        n = op.gain.shape[0] // (op.groups or 1)
        if op.groups is not None and op.groups > 1:
            raise refused(cls.name, f"the norm of layer {op.layer} has {op.groups} groups of its gain")
        return cls(fmt.compute, min(n, op.x.width), op.eps, max(1, op.x.width // n), lnc)

    @property
    def each(self) -> float:
        return self.parts / self.lnc

    def keywords(self) -> Mapping[str, Keyword]:
        return {"eps": Keyword(self.eps, 1e-5)}

    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        dtype = DTYPES[self.dtype]
        return source.normal((sizes[0], self.n), dtype), source.normal((self.n,), dtype)

    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        x, gain = as_f32(*arrays)
        return (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(self.eps)) * gain,)


@dataclass(frozen=True, slots=True)
class SwiGLUContract(Contract):
    """gate [rows, n] and up [rows, n] give function(gate) * up; function is a keyword."""

    name = "swiglu"
    kinds = GatedActivation

    n: int
    function: str
    lnc: int

    @classmethod
    def of(cls, op: GatedActivation, fmt: Format, lnc: int) -> Self:
        return cls(fmt.compute, op.out.width, op.function.value, lnc)

    @property
    def each(self) -> float:
        return 1 / self.lnc

    def keywords(self) -> Mapping[str, Keyword]:
        return {"function": Keyword(self.function, "silu")}

    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        shape, dtype = (sizes[0], self.n), DTYPES[self.dtype]
        return source.normal(shape, dtype), source.normal(shape, dtype)

    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        gate, up = as_f32(*arrays)
        return (activated(gate, self.function) * up,)


@dataclass(frozen=True, slots=True)
class ExpertsContract(Contract):
    """All experts over all rows: x [rows, hidden], affinities [rows, experts] in fp32, gate and up [experts,
    hidden, ffn] and down [experts, ffn, hidden] give the sum of affinity * (function(x gate) * (x up)) down.

    Steps of so few rows that the experts which they are routed to are loaded keep the software's kernel.
    """

    name = "experts"
    kinds = Experts
    axes: ClassVar[tuple[KernelAxis, KernelAxis | None]] = (KernelAxis((128, 512), 4, last=2048), None)
    compared: ClassVar[Sequence[Sizes]] = ((128, 0),)

    experts: int
    top_k: int
    hidden: int
    ffn: int
    function: str
    divided: bool

    @classmethod
    def of(cls, op: Experts, fmt: Format, lnc: int) -> Self:
        plain(cls.name, op, ("biases",))
        if op.scoring is Scoring.INPUT_SIGMOID:
            raise refused(cls.name, f"the experts of layer {op.layer} weigh their inputs")
        count = op.experts if op.own is None else op.own.size
        ffn = divided(cls.name, "columns of an expert", op.ffn, lnc)
        top_k = min(op.top_k, count)
        return cls(fmt.compute, count, top_k, op.x.width, ffn, op.function.value, op.own is not None)

    @property
    def least(self) -> int:
        return 1 if self.divided else -(-self.experts // self.top_k)

    def keywords(self) -> Mapping[str, Keyword]:
        return {"function": Keyword(self.function, "silu")}

    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        dtype, rows, count = DTYPES[self.dtype], sizes[0], self.experts
        if source.is_random:
            fitting = MOST_COMPARED // (3 * self.hidden * self.ffn)
            count = min(count, max(self.top_k, fitting))
        into, back = (count, self.hidden, self.ffn), (count, self.ffn, self.hidden)
        return (
            source.normal((rows, self.hidden), dtype),
            source.routed(rows, count, self.top_k),
            source.normal(into, dtype, self.hidden**-0.5),
            source.normal(into, dtype, self.hidden**-0.5),
            source.normal(back, dtype, self.ffn**-0.5),
        )

    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        x, affinities = as_f32(*arrays[:2])
        total = np.zeros_like(x)
        for number, matrices in enumerate(zip(*arrays[2:], strict=True)):
            gate, up, down = as_f32(*matrices)
            total += affinities[:, number, None] * ((activated(x @ gate, self.function) * (x @ up)) @ down)
        return (total,)
