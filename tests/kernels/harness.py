"""Small programs of single Ops: values are put into the core's memory and read from it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import pytest

from corepipe.engine.batch.arrays import SCALARS, pack_scalars
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.kernels import _native
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import SamplingBatch
from tests.reference.attention import hadamard, hadamard_order


def bf16(x: np.ndarray) -> np.ndarray:
    """Returns x rounded to bf16, as fp32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def value(program: _native.Program, index: int) -> np.ndarray:
    """Returns the program's value as fp32 [max_rows, width]; writing to it changes the program's memory."""
    return program.memory()[index].view(np.float32)


def one_step(
    programs: Sequence[_native.Program], rows: int, out: int = 0, threads: int = 2
) -> dict[str, Any]:
    """Runs the programs of a replica over one sequence, in a pool of its own; returns what the step told.

    Tokens are their positions.  `values` are those of the last program's value `out`, of all rows.
    """
    pool = _native.Pool(threads)
    executor = _native.Executor(pool, list(programs), out, value(programs[-1], out).shape[1])
    every = np.arange(rows, dtype=np.int32)
    tables = np.arange(-(-rows // 16), dtype=np.int32)[None]
    told = executor.wait(executor.submit(every, every, i32(0, rows), tables, every, None))
    pool.close()
    return told


Part = tuple[Sequence[np.ndarray], int, Sequence[int]]
"""Rows of a sequence for each of a program's first values, the position of the first row, and its blocks."""


def run_parts(
    executor: _native.Executor, program: _native.Program, out: int, parts: Sequence[Part]
) -> list[np.ndarray]:
    """Computes parts of sequences in one batch; returns the rows of value `out` of each part."""
    counts = [len(rows[0]) for rows, _, _ in parts]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    for number in range(len(parts[0][0])):
        joined = np.concatenate([rows[number] for rows, _, _ in parts])
        value(program, number)[: len(joined), : joined.shape[1]] = joined
    positions = np.concatenate([np.arange(at, at + n) for (_, at, _), n in zip(parts, counts, strict=True)])
    width = max(len(blocks) for *_, blocks in parts)
    tables = np.array([[*blocks, *[0] * (width - len(blocks))] for *_, blocks in parts], np.int32)
    tokens = np.zeros(len(positions), np.int32)
    executor.wait(executor.submit(tokens, positions.astype(np.int32), starts, tables, i32(), None))
    found = value(program, out)
    return [found[a:b].copy() for a, b in itertools.pairwise(starts)]


T = TypeVar("T")
FEW = "COREPIPE_TESTS_FEW"
"""Set in a process that runs the short form of tests: on another ISA, or under a sanitizer."""


NO_OTHER = "this build left out other tables of kernels: COREPIPE_TABLES=all, or runnable, has them built"
several_tables = pytest.mark.skipif(len(_native.isas()) < 2, reason=NO_OTHER)
needs_portable = pytest.mark.skipif("portable" not in _native.isas(), reason=NO_OTHER)


def elsewhere(values: Sequence[T], few: Sequence[T]) -> Sequence[T]:
    """Returns the values of a parameter: all of them, but `few` in the short form of tests.

    Loops, sizes and indices are one template for all ISAs; they differ in the operations on a vector, on a
    part of one, and at the transitions between segments or tiles.  `few` has each of these, the long form all
    values.
    """
    assert set(map(str, few)) <= set(map(str, values))
    return few if FEW in os.environ else values


def in_turn(*axes: Sequence[object]) -> list[object]:
    """Returns each combination of the axes' values as a parameter; some only in `make test-slow`.

    The values of the last axis are used in turn: the short form has all combinations of the other axes, and
    each value of the last with each of theirs if there are enough combinations.
    """
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, places, strict=True)),
            marks=[] if places[-1] == sum(places[:-1]) % len(axes[-1]) else pytest.mark.slow,
        )
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def crossed(*axes: Sequence[object]) -> list[object]:
    """Returns each combination of the axes' values as a parameter; in the short form of tests as
    `in_turn`."""
    return in_turn(*axes) if FEW in os.environ else list(itertools.product(*axes))


def in_formats(values: Sequence[object]) -> list[object]:
    """Returns parameters (value, format): each in fp32, whose bounds are the tightest, and in one other
    format in turn; in all of them by `make test-slow`.  In the short form of tests each is in one format."""
    if FEW in os.environ:
        return in_turn(values, list(FORMATS))
    others = [fmt for fmt in FORMATS if fmt != "fp32"]
    return [
        pytest.param(value, fmt, marks=[] if fmt in ("fp32", others[i % len(others)]) else pytest.mark.slow)
        for i, value in enumerate(values)
        for fmt in FORMATS
    ]


once = pytest.mark.skipif(FEW in os.environ, reason="the same with every table")


@dataclass
class Sequence_:
    """Queries, keys and values [T, heads * head_dim] of a whole sequence, and its blocks."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    blocks: list[int]


def int8(x: np.ndarray) -> np.ndarray:
    """Returns vectors as an int8 cache stores them, each with a scale of its own."""
    scale = (np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float32)
    return np.rint(x * (np.float32(1) / scale)).astype(np.float64) * scale


def turned_back(rotated: np.ndarray) -> np.ndarray:
    """Returns the vectors from which `hadamard` made these."""
    return hadamard(rotated.astype(np.float64)) / hadamard_order(rotated.shape[-1])


class AttentionRig:
    """One attention Op over a cache, fed with chunks of sequences; dtype: of the cache, `int8` of bf16, or
    `int8-fp32`."""

    def __init__(
        self,
        heads: int = 6,
        kv_heads: int = 2,
        head_dim: int = 64,
        dtype: str = "bf16",
        *,
        blocks: int = 80,
        block_size: int = 16,
        max_rows: int = 640,
        window: int | None = None,
        round_bf16: bool = False,
        threads: int = 2,
        **fused: object,
    ) -> None:
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.block_size, self.window, self.dtype = block_size, window, dtype
        self.scale = head_dim**-0.5
        self.softcap, self.slopes = fused.get("softcap"), fused.get("slopes")
        self.sinks, self.chunked = fused.get("sinks"), fused.get("chunked", False)
        kept = "fp32" if dtype.endswith("fp32") else "bf16"
        self.cache = _native.KVCache(
            2, blocks, block_size, kv_heads, head_dim, kept, dtype.startswith("int8")
        )
        widths = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim, heads * head_dim]
        self.program = _native.Program(widths, max_rows, round_bf16)
        self.program.attention(0, 1, 2, 3, self.cache, 1, heads, self.scale, window=window, **fused)
        self.pool = _native.Pool(threads)
        self.executor = _native.Executor(self.pool, [self.program], 3, heads * head_dim)

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        """Returns the vectors in the dtype of the computation."""
        return x if self.dtype.endswith("fp32") else bf16(x)

    def sequence(self, rng: np.random.Generator, length: int, blocks: Sequence[int]) -> Sequence_:
        arrays = [
            rng.standard_normal((length, n * self.head_dim)).astype(np.float32)
            for n in (self.heads, self.kv_heads, self.kv_heads)
        ]
        q, k, v = map(self._rounded, arrays)
        return Sequence_(q, k, v, list(blocks))

    def step(self, *chunks: tuple[Sequence_, int, int]) -> list[np.ndarray]:
        """Computes tokens [begin, end) of each sequence in one batch; returns their outputs."""
        parts = [((s.q[a:b], s.k[a:b], s.v[a:b]), a, s.blocks) for s, a, b in chunks]
        return run_parts(self.executor, self.program, 3, parts)

    def run(self, seq: Sequence_, *chunks: int) -> np.ndarray:
        """Returns the outputs of the whole sequence in chunks of these sizes, repeated."""
        outputs, begin = [], 0
        for size in itertools.cycle(chunks):
            end = min(begin + size, len(seq.q))
            outputs += self.step((seq, begin, end))
            begin = end
            if end == len(seq.q):
                return np.concatenate(outputs)
        raise ValueError("no chunks")

    def expected(self, seq: Sequence_) -> tuple[np.ndarray, np.ndarray]:
        """Returns the result in double precision, and the same with |v|, which bounds the effect of
        rounding."""
        length, group = len(seq.q), self.heads // self.kv_heads
        q = seq.q.reshape(length, self.kv_heads, group, self.head_dim).astype(np.float64)
        k, v = (x.reshape(length, self.kv_heads, self.head_dim) for x in (seq.k, seq.v))
        if self.dtype.startswith("int8"):
            k, v = turned_back(int8(hadamard(k))), int8(v)
            q = turned_back(self._rounded(hadamard(q.astype(np.float32))))
        of_heads = [x.astype(np.float64).swapaxes(0, 1) for x in (k, v)]  # [kv_heads, length, head_dim]
        k, v = (x[:, None] for x in of_heads)
        scores = q.transpose(1, 2, 0, 3) @ k.swapaxes(-1, -2) * self.scale
        age = np.arange(length)[:, None] - np.arange(length)
        if self.softcap is not None:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if self.slopes is not None:
            scores -= self.slopes.astype(np.float64).reshape(self.kv_heads, group)[..., None, None] * age
        seen = (age >= 0) & (age < (self.window or length))
        if self.chunked:
            chunks = np.arange(length) // self.window
            seen &= chunks[:, None] == chunks
        scores = np.where(seen, scores, -np.inf)
        most = scores.max(-1, keepdims=True)
        p = np.exp(scores - most)
        nothing = 0.0
        if self.sinks is not None:
            nothing = np.exp(
                self.sinks.astype(np.float64).reshape(self.kv_heads, group)[..., None, None] - most
            )
        p /= p.sum(-1, keepdims=True) + nothing
        results = [(p @ x).transpose(2, 0, 1, 3).reshape(length, -1) for x in (v, np.abs(v))]
        return results[0], results[1]


def sampling(rows: int, **fields: object) -> SamplingBatch:
    """Returns plain greedy sampling, except for the given fields: a scalar stands for all rows."""
    packed = np.frombuffer(pack_scalars(TokenSampling(temperature=0.0), seed=0), SCALARS)[0]
    plain = {name: packed[name] for name in SCALARS.names or ()}
    plain |= {"position": np.int64(0), "chosen": np.int32(-1), "masked": np.int32(-1)}
    arrays = {
        name: np.full(rows, np.asarray(fields.pop(name, one), one.dtype), one.dtype)
        for name, one in plain.items()
    }
    bias = fields.pop("bias", [{}] * rows)
    seen = fields.pop("seen", [{}] * rows)
    assert not fields, fields
    return SamplingBatch(
        **arrays,
        bias_offsets=_offsets(bias),
        bias_ids=np.array([i for row in bias for i in row], np.int32),
        bias_values=np.array([x for row in bias for x in row.values()], np.float32),
        seen_offsets=_offsets(seen),
        seen_ids=np.array([i for row in seen for i in row], np.int32),
        seen_counts=np.array([n for row in seen for n in row.values()], np.int32),
    )


def _offsets(rows: list[dict]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
