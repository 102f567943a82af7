"""Contracts of Ops that compute rows of sequences: attention and recurrent scans."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.formats import Format
from corepipe.neuron.ops import Attention, SelectiveScan
from corepipe.neuron.timing.kernel_cost import KernelAxis, KernelSteps
from corepipe.neuron.values import TOKENS
from corepipe.nki.ops.contract import (
    DTYPES,
    F32,
    Array,
    Contract,
    F32s,
    Keyword,
    Sizes,
    Source,
    as_f32,
    divided,
    plain,
    refused,
)

PROMPT_ROWS = KernelAxis((128, 256), 2, apart=True)
"""Rows of a sequence at which kernels of prompts are simulated; fewer count as the first."""

BEFORE = KernelAxis((0, 512), 4)
"""Tokens before a prompt's rows at which attention is simulated."""

SEQUENCES, CONTEXTS = KernelAxis((1, 4), 4, last=64), KernelAxis((128, 512), 4)
"""Sequences of a decode step and their context, at which kernels of answers are simulated."""


@dataclass(frozen=True, slots=True)
class AttentionContract(Contract):
    """q [rows, heads, d], k and v [context, kv_heads, d] of one sequence give [rows, heads, d]; scale, causal
    and window are keywords.

    The rows are the last positions of the context: row i sees the keys up to context - rows + i, the latest
    `window` of them.
    """

    name = "attention"
    kinds = Attention
    steps = KernelSteps.PROMPTS
    axes: ClassVar[tuple[KernelAxis, KernelAxis | None]] = (PROMPT_ROWS, BEFORE)
    compared: ClassVar[Sequence[Sizes]] = ((128, 0), (256, 512))

    heads: int
    kv_heads: int
    d: int
    scale: float
    causal: bool
    window: int | None

    @classmethod
    def of(cls, op: Attention, fmt: Format, lnc: int) -> Self:
        others = ("alibi", "softcap", "distance_bias", "sinks", "chunked", "head_eps", "tempering")
        plain(cls.name, op, others)
        if op.k.rows != TOKENS:
            raise refused(cls.name, f"the attention of layer {op.layer} is to rows of an encoder")
        heads, kv_heads = _on_core(cls.name, op.heads, lnc)
        return cls(fmt.compute, heads, kv_heads, op.heads.head_dim, op.scale, op.causal, op.window)

    def keywords(self) -> Mapping[str, Keyword]:
        return {
            "scale": Keyword(self.scale, self.d**-0.5),
            "causal": Keyword(self.causal, default=True),
            "window": Keyword(self.window, None),
        }

    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        (rows, before), dtype = sizes, DTYPES[self.dtype]
        kept = (before + rows, self.kv_heads, self.d)
        q = source.normal((rows, self.heads, self.d), dtype)
        return q, source.normal(kept, dtype), source.normal(kept, dtype)

    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (self._attended(*as_f32(*arrays)),)

    def _attended(self, q: F32s, k: F32s, v: F32s) -> F32s:
        """Returns the result for one sequence."""
        group, hidden, out = self.heads // self.kv_heads, self._hidden(len(q), len(k)), np.empty_like(q)
        for head in range(self.heads):
            scores = np.float32(self.scale) * (q[:, head] @ k[:, head // group].T)
            scores[hidden] = -inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, head] = weights @ v[:, head // group]
        return out

    def _hidden(self, rows: int, context: int) -> npt.NDArray[np.bool_]:
        """Returns which keys each row does not see."""
        ahead = np.arange(context)[None, :] - (np.arange(rows)[:, None] + context - rows)
        if self.causal:
            return np.asarray((ahead > 0) | (ahead <= -(self.window or context)))
        return np.asarray(np.abs(ahead) > (self.window or 2 * context) // 2)


@dataclass(frozen=True, slots=True)
class AttentionDecodeContract(AttentionContract):
    """q [sequences, heads, d], k and v [sequences, context, kv_heads, d] give [sequences, heads, d]: the same
    for one row of each sequence, the last of its context."""

    name = "attention-decode"
    steps = KernelSteps.TOKENS
    axes: ClassVar[tuple[KernelAxis, KernelAxis | None]] = (SEQUENCES, CONTEXTS)
    compared: ClassVar[Sequence[Sizes]] = ((1, 128), (4, 512))

    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        (sequences, context), dtype = sizes, DTYPES[self.dtype]
        kept = (sequences, context, self.kv_heads, self.d)
        q = source.normal((sequences, self.heads, self.d), dtype)
        return q, source.normal(kept, dtype), source.normal(kept, dtype)

    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        each = zip(*as_f32(*arrays), strict=True)
        return (np.concatenate([self._attended(q[None], k, v) for q, k, v in each]),)


@dataclass(frozen=True, slots=True)
class ScanContract(Contract):
    """Mamba-2's recurrence over the rows of one sequence: for each head h = exp(dt a) h + outer(b, dt x), and
    out = c h + skip x.

    x [rows, heads * d]; dt [rows, heads], the step sizes after their softplus; a [1, heads], below 0; b and
    c [rows, groups * states], a group shared by neighbouring heads (groups is a keyword); skip [1, heads];
    state [heads, states, d], which is h before the first row.  It gives out [rows, heads * d], and h after
    the last row where it takes `state`.  dt, a, skip and state are in fp32.  A kernel without the parameter
    skip leaves that product to others; one without state begins with zeros, and is compared so.
    """

    name = "scan"
    kinds = SelectiveScan
    steps = KernelSteps.PROMPTS
    axes: ClassVar[tuple[KernelAxis, KernelAxis | None]] = (PROMPT_ROWS, None)
    compared: ClassVar[Sequence[Sizes]] = ((128, 0), (256, 0))
    optional: ClassVar[Sequence[str]] = ("skip", "state")

    heads: int
    groups: int
    d: int
    states: int

    @classmethod
    def of(cls, op: SelectiveScan, fmt: Format, lnc: int) -> Self:
        heads, groups = _on_core(cls.name, op.heads, lnc)
        return cls(fmt.compute, heads, groups, op.heads.head_dim, op.states)

    def keywords(self) -> Mapping[str, Keyword]:
        return {"groups": Keyword(self.groups, 1)}

    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        return (*self._rows(sizes[0], source), source.normal((self.heads, self.states, self.d), F32))

    def _rows(self, rows: int, source: Source) -> tuple[Array, ...]:
        """Returns all but the state."""
        dtype, shared = DTYPES[self.dtype], (rows, self.groups * self.states)
        return (
            source.normal((rows, self.heads * self.d), dtype),
            source.uniform((rows, self.heads), 1e-3, 0.1),
            source.uniform((1, self.heads), 1.0, 16.0, sign=-1),
            source.normal(shared, dtype),
            source.normal(shared, dtype),
            source.normal((1, self.heads), F32),
        )

    def results(self, taken: Collection[str]) -> int:
        return 1 + ("state" in taken)

    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        x, dt, a, b, c, skip, h = as_f32(*arrays)
        out = np.empty((len(x), self.heads, self.d), np.float32)
        for row in range(len(x)):
            h = self._step(h, x[row], dt[row], a[0], b[row])
            out[row] = self._read(h, c[row])
        out += skip[0, :, None] * x.reshape(out.shape)
        return out.reshape(x.shape), h

    def _step(self, h: F32s, x: F32s, dt: F32s, a: F32s, b: F32s) -> F32s:
        """Returns the state [..., heads, states, d] after one more row."""
        entering = dt[..., None] * x.reshape(*dt.shape, self.d)
        decayed = np.exp(dt * a)[..., None, None] * h
        return np.asarray(decayed + self._by_head(b)[..., None] * entering[..., None, :], np.float32)

    def _read(self, h: F32s, c: F32s) -> F32s:
        return np.asarray((self._by_head(c)[..., None] * h).sum(axis=-2), np.float32)

    def _by_head(self, shared: F32s) -> F32s:
        by_group = shared.reshape(*shared.shape[:-1], self.groups, self.states)
        return np.repeat(by_group, self.heads // self.groups, axis=-2)


@dataclass(frozen=True, slots=True)
class ScanDecodeContract(ScanContract):
    """The same for one row of each sequence: x [sequences, heads * d], dt [sequences, heads], b and c
    [sequences, groups * states] and state [sequences, heads, states, d], which the kernel must take."""

    name = "scan-decode"
    steps = KernelSteps.TOKENS
    axes: ClassVar[tuple[KernelAxis, KernelAxis | None]] = (SEQUENCES, None)
    compared: ClassVar[Sequence[Sizes]] = ((1, 0), (4, 0))
    optional: ClassVar[Sequence[str]] = ()

    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        state = (sizes[0], self.heads, self.states, self.d)
        return (*self._rows(sizes[0], source), source.normal(state, F32))

    def results(self, taken: Collection[str]) -> int:
        return 2

    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        x, dt, a, b, c, skip, h = as_f32(*arrays)
        h = self._step(h, x, dt, a, b)
        out = self._read(h, c) + skip[0, :, None] * x.reshape(len(x), self.heads, self.d)
        return out.reshape(x.shape), h


def _on_core(name: str, heads: HeadLayout, lnc: int) -> tuple[int, int]:
    """Returns the heads, and the key/value heads, of a physical core: one key/value head is shared."""
    queries = divided(name, "heads", heads.heads, lnc)
    return queries, 1 if heads.kv_heads == 1 else divided(name, "key/value heads", heads.kv_heads, lnc)
