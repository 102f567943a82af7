"""Runs single Linears through the binding, and computes the expected results in numpy.

The functions are called in a process of each ISA, so they take and return plain arrays.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe.kernels import native, packing
from corepipe.neuron.host import packed_int4
from corepipe.neuron.numerics.int4 import Int4
from tests.kernels.harness import one_step

F32 = npt.NDArray[np.float32]
INT8_GROUP = 64


@dataclass(frozen=True)
class Weights:
    """A matrix as it is stored: values [n, k] (int8, u8 or fp32); scales [n] of the int8 kinds, scales and
    offsets [n, groups] of the int4 kinds."""

    kind: packing.Kind
    values: npt.NDArray[Any]
    scale: npt.NDArray[Any] | None
    offset: npt.NDArray[np.float16] | None = None

    def matrix(self) -> Any:
        n, k = self.values.shape
        if self.kind in packing.INT4_KINDS:
            return native().Matrix(self.kind, packed_int4.pack(self.int4()), None, n, k)
        return native().Matrix(self.kind, packing.pack(self.kind, self.values), self.scale, n, k)

    def dense(self) -> npt.NDArray[np.float64]:
        """Returns the numbers that the stored matrix stands for."""
        if self.kind in packing.INT4_KINDS:
            return self.int4().dense().astype(np.float64)
        values = round_bf16(self.values) if self.kind == "bf16" else self.values
        scale = 1.0 if self.scale is None else self.scale[:, None].astype(np.float64)
        return values.astype(np.float64) * scale

    def int4(self) -> Int4:
        return Int4(self.values, self.scale, *packing.int4_form(self.kind), self.offset)

    def part(self, rows: slice, columns: slice) -> Weights:
        """Returns the columns from the start of a group on."""
        if self.kind in packing.INT4_KINDS:
            n, k = (np.arange(size) for size in self.values.shape)
            part = self.int4().part(n[rows], k[columns])
            return Weights(self.kind, part.values, part.scale, part.offset)
        scale = None if self.scale is None else self.scale[rows]
        return Weights(self.kind, np.ascontiguousarray(self.values[rows, columns]), scale)


@dataclass(frozen=True)
class Case:
    """x [M, k] times each of `weights`, with the fused Ops around it; `views` are (n0, n, k0, k)."""

    x: F32
    weights: tuple[Weights, ...]
    biases: tuple[F32 | None, ...] = (None, None, None)
    norm: tuple[F32, float] | None = None
    residual: F32 | None = None
    glu: bool = False
    round_bf16: bool = False
    views: tuple[tuple[int, int, int, int], ...] = field(default=())


def use_isa(name: str) -> None:
    """Selects an ISA before the first call into the kernels of this process."""
    os.environ["COREPIPE_ISA"] = name


def random_weights(rng: np.random.Generator, kind: packing.Kind, n: int, k: int) -> Weights:
    if kind in {"int8", "int8w"}:
        scale = rng.uniform(0.5, 2.0, n).astype(np.float32) / np.float32(127 * np.sqrt(k))
        return Weights(kind, rng.integers(-127, 128, (n, k), dtype=np.int8), scale)
    if kind in packing.INT4_KINDS:
        group, offsets = packing.int4_form(kind)
        shape, least = (n, -(-k // group)), {"none": 0, "zeros": -16, "minima": -1}[offsets]
        scales = (rng.uniform(-0.3, 0.3, shape) / np.sqrt(k)).astype(np.float16)
        some = rng.uniform(least, 0, shape) / (np.sqrt(k) if offsets == "minima" else 1)
        offset = (
            None if offsets == "none" else (np.rint(some) if offsets == "zeros" else some).astype(np.float16)
        )
        return Weights(kind, rng.integers(0, 16, (n, k), dtype=np.uint8), scales, offset)
    return Weights(kind, (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32), None)


def round_bf16(x: npt.NDArray[Any]) -> F32:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def quantize(x: F32, group: int = INT8_GROUP) -> tuple[npt.NDArray[np.int8], F32]:
    """Returns q [M, groups, group] and scales [M, groups], in fp32 as the kernels define it."""
    m, k = x.shape
    groups = np.pad(x, ((0, 0), (0, -k % group))).reshape(m, -1, group)
    scale = np.abs(groups).max(axis=2) / np.float32(127)
    scale[scale < np.finfo(np.float32).tiny] = 0
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    return np.rint(groups * inverse[:, :, None]).astype(np.int8), scale


def converted(kind: packing.Kind, x: F32) -> npt.NDArray[np.float64]:
    """Returns x in the form that the product multiplies."""
    if kind == "int8" or kind in packing.INT4_KINDS:
        q, scale = quantize(x, INT8_GROUP if kind == "int8" else packing.int4_form(kind)[0])
        wide = q.astype(np.float64) * scale[:, :, None].astype(np.float64)
        return wide.reshape(len(x), -1)[:, : x.shape[1]]
    return (x if kind == "fp32" else round_bf16(x)).astype(np.float64)


def run(case: Case, threads: int = 1) -> list[F32]:
    """Returns the outputs [M, n] of the fused Linear."""
    program, outputs = _program(case)
    one_step([program], len(case.x), threads=threads)
    return [_read(program, value, len(case.x)) for value in outputs]


def run_rms_norm(x: F32, gain: F32, eps: float, *, rounded: bool) -> F32:
    program = native().Program([x.shape[1], x.shape[1]], len(x), rounded)
    program.embed(0, x)
    program.rms_norm(0, 1, gain, eps)
    one_step([program], len(x), threads=1)
    return _read(program, 1, len(x))


def run_pairwise(op: str, a: F32, b: F32, *, rounded: bool) -> F32:
    """Runs the unfused "add" or "glu"."""
    program = native().Program([a.shape[1]] * 3, len(a), rounded)
    program.embed(0, a)
    program.embed(1, b)
    getattr(program, op)(0, 1, 2)
    one_step([program], len(a), threads=1)
    return _read(program, 2, len(a))


def accumulators(x: npt.NDArray[np.int8], weights: Weights) -> npt.NDArray[np.int32]:
    result: npt.NDArray[np.int32] = native().int8_accumulators(x, weights.matrix())
    return result


def _program(case: Case) -> tuple[Any, list[int]]:
    matrices = [w.matrix() for w in case.weights]
    if case.views:
        matrices = [m.view(*view) for m, view in zip(matrices, case.views, strict=True)]
    widths = [case.x.shape[1], *(m.n for m in matrices), matrices[0].n]
    program = native().Program(widths, len(case.x), case.round_bf16)
    program.embed(0, case.x)
    residual = None
    if case.residual is not None:
        program.embed(len(widths) - 1, case.residual)
        residual = len(widths) - 1
    segments = [(m, bias, i + 1) for i, (m, bias) in enumerate(zip(matrices, case.biases, strict=False))]
    function = "silu" if case.glu else None
    program.linear(0, segments, norm=case.norm, function=function, glu=case.glu, residual=residual)
    return program, [1] if case.glu else list(range(1, len(matrices) + 1))


def _read(program: Any, value: int, rows: int) -> F32:
    return np.ascontiguousarray(program.memory()[value][:rows]).view(np.float32)


@dataclass(frozen=True)
class Chain:
    """Linears one after the other, as around a layer's feed-forward part: norm and o with its residual, norm,
    gate and up, down with its residual, norm and two heads that share x."""

    x: F32
    gain: F32
    o: Weights
    gate: Weights
    up: Weights
    down: Weights
    heads: tuple[Weights, Weights]
    eps: float = 1e-5


def random_chain(kind: packing.Kind, rows: int, wide: int, inner: int) -> Chain:
    rng = np.random.default_rng(rows)
    shapes = [(wide, wide), (inner, wide), (inner, wide), (wide, inner), (70, wide), (33, wide)]
    o, gate, up, down, *heads = (random_weights(rng, kind, n, k) for n, k in shapes)
    x, gain = rng.standard_normal((rows, wide)).astype(np.float32), rng.uniform(0.5, 2, wide)
    return Chain(x, gain.astype(np.float32), o, gate, up, down, (heads[0], heads[1]))


def run_chain(chain: Chain, rows: slice, threads: int = 1) -> list[F32]:
    """Returns the result of each Linear for some of the rows: o, gate times up, down, and the two heads."""
    x = np.ascontiguousarray(chain.x[rows])
    wide, inner = chain.o.values.shape[1], chain.gate.values.shape[0]
    program = native().Program([wide, wide, inner, wide, 70, 33], len(x), round_bf16=False)
    norm = (chain.gain, chain.eps)
    heads = [(weights.matrix(), None, 4 + i) for i, weights in enumerate(chain.heads)]
    program.embed(0, x)
    program.linear(0, [(chain.o.matrix(), None, 1)], norm=norm, residual=0)
    pair = [(chain.gate.matrix(), None, 2), (chain.up.matrix(), None, 2)]
    program.linear(1, pair, norm=norm, function="silu", glu=True)
    program.linear(2, [(chain.down.matrix(), None, 3)], residual=1)
    program.linear(3, heads, norm=norm)
    one_step([program], len(x), threads=threads)
    return [_read(program, value, len(x)) for value in range(1, 6)]


def expected_chain(chain: Chain, got: list[F32]) -> list[npt.NDArray[np.float64]]:
    """Computes the same in numpy, each Linear from the kernels' result of the one before."""
    o, gated, down, *_ = (values.astype(np.float32) for values in got)

    def times(x: F32, weights: Weights) -> npt.NDArray[np.float64]:
        return converted(weights.kind, x) @ weights.dense().T

    def normed(x: F32) -> F32:
        return run_rms_norm(x, chain.gain, chain.eps, rounded=False)

    gate = times(normed(o), chain.gate)
    return [
        chain.x + times(normed(chain.x), chain.o),
        gate / (1 + np.exp(-gate)) * times(normed(o), chain.up),
        o + times(gated, chain.down),
        *(times(normed(down), weights) for weights in chain.heads),
    ]


def run_in_place(x: F32, base: F32, weights: Weights, threads: int, times: int) -> list[F32]:
    """Computes base + x @ w.T in the place of base: a panel that is processed twice is added twice."""
    n, k = weights.values.shape
    program = native().Program([k, n], len(x), round_bf16=False)
    program.embed(0, x)
    program.embed(1, base)
    program.linear(0, [(weights.matrix(), None, 1)], residual=1)
    results = []
    for _ in range(times):
        one_step([program], len(x), threads=threads)
        results.append(_read(program, 1, len(x)).copy())
    return results
