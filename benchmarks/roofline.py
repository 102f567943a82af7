"""The Linears of SmolLM2-135M as shares of what the machine can do.

First the limits, measured: reading memory in huge pages, int8 and bf16 products on registers.  Then each
Linear, cold (its weights come from memory, as in a decode step), as a share of the time that the nearer
limit allows: 100 % is perfect.  Limits and Linears are measured in turns, as a shared machine drifts.
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from corepipe.kernels import native, packing
from corepipe.neuron.host import packed_int4
from corepipe.neuron.numerics.int4 import Int4

MIB = 1 << 20
COLD_BYTES = 256 * MIB  # of weights, more than any cache holds
LARGE_M = 64  # from here on the products take longer than reading their weights
BYTES: dict[str, float] = {"int8": 1, "int8w": 1, "bf16": 2, "fp32": 4} | {
    kind: packing.packed_bytes(kind, packing.PANEL, packing.K_MULTIPLE) / (packing.PANEL * packing.K_MULTIPLE)
    for kind in packing.INT4_KINDS
}
"""Bytes of a weight."""

PRODUCTS_OF_FOUR_BITS = {"avx2"}
"""Tables whose products of four bits are faster than those of eight."""

IN_FP32 = ("avx512-vnni", "avx2")
"""Tables whose products of bf16 are multiply-adds in fp32, the widest first."""


@dataclass(frozen=True)
class Shape:
    """A Linear [sum(n), k] in segments, with what is fused around it."""

    name: str
    k: int
    n: tuple[int, ...]
    norm: bool = False
    residual: bool = False
    glu: bool = False

    @property
    def weights(self) -> int:
        return self.k * sum(self.n)


LAYER = (
    Shape("qkv", 576, (576, 192, 192), norm=True),
    Shape("o", 576, (576,), residual=True),
    Shape("gate+up", 576, (1536, 1536), norm=True, glu=True),
    Shape("down", 1536, (576,), residual=True),
)
HEAD = Shape("head", 576, (49152,), norm=True)


@dataclass(frozen=True)
class Limits:
    """Limits of the machine: GB/s and G operations/s; 0 where the ISA's product has no probe, and only one
    row has a share.

    fp32: multiply-adds of recurrent layers, as operations.
    """

    read: float
    product: float
    fp32: float = 0.0

    def seconds(self, shape: Shape, kind: str, m: int) -> float:
        memory = shape.weights * BYTES[kind] / self.read
        compute = 2 * m * shape.weights / self.product if self.product else 0.0
        return max(memory, compute) / 1e9 if self.product or m == 1 else math.nan


def measure_limits(kind: str, threads: int, isa: str | None = None) -> Limits:
    """Measures the limits of the ISA in use, or of another."""
    isa = isa or native().isa()
    instruction = {"int8-weights": "bf16", "int8w": "bf16"}.get(kind, kind)
    if kind in {*packing.INT4_KINDS, "int4-weights"}:
        instruction = "int4" if isa in PRODUCTS_OF_FOUR_BITS else "int8"
    product = native().probe_products(isa, instruction, threads, 0.1)
    fp32 = next((known for known in IN_FP32 if known in native().isas()), None)
    multiply_adds = native().probe_products(fp32, "bf16", threads, 0.1) if fp32 else 0.0
    return Limits(native().probe_read(COLD_BYTES, threads, 0.3), product, multiply_adds)


def random_matrix(kind: packing.Kind, n: int, k: int, copies: int) -> list[Any]:
    """Returns matrices of equal values at different addresses."""
    packed, scale = random_weights(kind, n, k)
    arena = np.tile(packed, copies).reshape(copies, -1)
    return [native().Matrix(kind, arena[i], scale, n, k) for i in range(copies)]


def random_weights(kind: packing.Kind, n: int, k: int) -> tuple[Any, Any]:
    """Returns packed weights, and their scales."""
    rng = np.random.default_rng(0)
    if kind in packing.INT4_KINDS:
        return packed_int4.pack(random_int4(rng, kind, n, k)), None
    if kind in {"int8", "int8w"}:
        values = rng.integers(-127, 128, (n, k), dtype=np.int8)
        return packing.pack(kind, values), np.full(n, 0.01, np.float32)
    return packing.pack(kind, rng.random((n, k), dtype=np.float32)), None


def random_int4(rng: np.random.Generator, kind: packing.Int4Kind, n: int, k: int) -> Int4:
    group, offsets = packing.int4_form(kind)
    scale = np.full((n, -(-k // group)), 0.01, np.float16)
    values = rng.integers(0, 16, (n, k), dtype=np.uint8)
    return Int4(values, scale, group, offsets, None if offsets == "none" else -scale)


class Bench:
    """One Linear, run many times, each time with other weights."""

    def __init__(self, shape: Shape, kind: packing.Kind, m: int, pool: Any) -> None:  # noqa: ANN401
        cold = int(COLD_BYTES / (shape.weights * BYTES[kind]))
        self.copies = max(1, min(cold, 8 if m >= LARGE_M else 64))
        self.m = m
        matrices = [random_matrix(kind, n, shape.k, self.copies) for n in shape.n]
        program = native().Program([shape.k, *shape.n, shape.n[0]], m, kind != "fp32")
        rng = np.random.default_rng(1)
        program.embed(0, rng.standard_normal((m, shape.k), dtype=np.float32))
        last = len(shape.n) + 1
        program.embed(last, np.zeros((m, shape.n[0]), np.float32))
        norm = (np.ones(shape.k, np.float32), 1e-5) if shape.norm else None
        for i in range(self.copies):
            segments = [(matrix[i], None, s + 1) for s, matrix in enumerate(matrices)]
            program.linear(
                0,
                segments,
                norm=norm,
                function="silu" if shape.glu else None,
                glu=shape.glu,
                residual=last if shape.residual else None,
            )
        self.executor = native().Executor(pool, [program], 0, shape.k)

    def seconds(self) -> float:
        rows = np.arange(self.m, dtype=np.int32)
        starts = np.array([0, self.m], np.int32)
        ticket = self.executor.submit(rows, rows, starts, np.zeros((1, 1), np.int32), rows[:1], None)
        return float(self.executor.wait(ticket)["seconds"]) / self.copies


def report(kind: packing.Kind, rows: list[int], threads: int, repeats: int) -> None:
    pool = native().Pool(threads)
    print(f"\n{kind}: us, and the share of the nearer limit")
    print("     M" + "".join(f"{s.name:>15}" for s in (*LAYER, HEAD)) + "   layer: us  GB/s  GOP/s  share")
    for m in rows:
        shapes = LAYER if m >= LARGE_M else (*LAYER, HEAD)
        limits, times = measure_row(kind, m, shapes, pool, repeats)
        ideal = {s: limits.seconds(s, kind, m) for s in shapes}
        cells = "".join(f"{times[s] * 1e6:9.1f} {percent(ideal[s] / times[s]):>4} " for s in shapes)
        layer, weights = sum(times[s] for s in LAYER), sum(s.weights for s in LAYER)
        gigabytes, operations = weights * BYTES[kind] / layer / 1e9, 2 * m * weights / layer / 1e9
        share = sum(ideal[s] for s in LAYER) / layer
        pad = " " * 15 * (len(LAYER) + 1 - len(shapes))
        print(f"{m:6d}{cells}{pad}{layer * 1e6:12.0f} {gigabytes:5.1f} {operations:6.0f} {percent(share):>6}")
    pool.close()


def percent(share: float) -> str:
    """Returns a whole percentage; a dash where the limit is not known."""
    return "-" if math.isnan(share) else f"{share:.0%}"


def measure_row(
    kind: packing.Kind,
    m: int,
    shapes: tuple[Shape, ...],
    pool: Any,  # noqa: ANN401
    repeats: int,
) -> tuple[Limits, dict[Shape, float]]:
    """Returns the best of several turns, for the limits and for the Linears."""
    benches = {shape: Bench(shape, kind, m, pool) for shape in shapes}
    turns = [
        (measure_limits(kind, pool.threads), {s: b.seconds() for s, b in benches.items()})
        for _ in range(repeats)
    ]
    limits = Limits(max(t[0].read for t in turns), max(t[0].product for t in turns))
    return limits, {s: min(t[1][s] for t in turns) for s in shapes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", nargs="+", default=["int8", "int8w", "bf16", "fp32"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16, 32, 512])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(f"{native().isa()}, {args.threads} threads")
    print(f"memory         {native().probe_read(512 * MIB, args.threads, 1.0):7.1f} GB/s read")
    for isa in native().isas():
        for kind in ("int8", "bf16"):
            if rate := native().probe_products(isa, kind, args.threads, 0.3):
                print(f"{kind} on {isa:<6} {rate:7.0f} GOP/s")
    for kind in args.kinds:
        report(kind, args.rows, args.threads, args.repeats)


if __name__ == "__main__":
    main()
