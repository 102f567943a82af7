"""A runtime profile: the properties of the software between a request and the cores, and how it pads a batch.


Contexts are padded by their mean over the sequences: the real stack uses the bucket of the longest one.  With
drafts every sequence has as many rows, whether it has drafts or not; its keys and values are read once.
Sequences that are computed whole are padded to the bucket of the longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from corepipe.neuron.chips import native_plugin
from corepipe.neuron.chips.constants import Constants, shipped
from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.native_plugin import KvBudget
from corepipe.neuron.chips.scales import UNSCALED, Scales
from corepipe.neuron.formats import Format
from corepipe.neuron.step import StepShape

SMALLEST_BUCKET = 128
"""Smallest of the powers of two that graphs are compiled for: NxD Inference's developer guide, bucketing."""

HALVED_FROM = 64
"""The smallest of transformers-neuronx's prompt buckets, each half of a bucket for tokens (bucket.py)."""


TUTORIAL_BUCKETS = (2048, 4096, 10240, 12288)
"""Prompt buckets of NxD Inference's tutorials for trn2
(libraries/nxd-inference/tutorials/trn2-llama3.1-405b-speculative-tutorial.rst)."""


class Buckets(StrEnum):
    """The lengths that graphs are compiled for: a shorter length is padded to the next."""

    EXACT = "any length"
    POWERS = "powers of two"
    HALVES = "halves of powers of two"
    SINGLE = "the longest sequence"
    CHUNKS = "one chunk, or powers of two where prompts are computed whole"
    TUTORIAL = "2048, 4096, 10240 or 12288 tokens"

    def pad(self, length: int, longest: int) -> int:
        """Returns the bucket of `length` tokens, where sequences have up to `longest`."""
        match self:
            case Buckets.EXACT:
                return length
            case Buckets.SINGLE:
                return max(length, longest)
            case Buckets.TUTORIAL:
                return next((bucket for bucket in TUTORIAL_BUCKETS if length <= bucket), max(length, longest))
            case Buckets.CHUNKS:
                raise ValueError("how prompts are cut is not known here: see native_plugin.prefill")
            case Buckets.POWERS | Buckets.HALVES:
                smallest = SMALLEST_BUCKET if self is Buckets.POWERS else HALVED_FROM
                power = 1 << max(length - 1, smallest - 1).bit_length()
                return max(length, min(power, longest))


class AttentionKernel(StrEnum):
    """The kernel that computes a prompt's scores.

    SEPARATE: the whole square, each step of the softmax a separate operation.  SQUARE: the whole square in
    one kernel.  CAUSAL: one kernel that skips the scores that the causal mask hides.
    """

    SEPARATE = "separate"
    SQUARE = "square"
    CAUSAL = "causal"


NEVER = 1 << 40
"""The shortest prompt of a kernel that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStyle:
    """The way in which a software stack runs attention, whatever the model.

    crossings: number of times that scores too large for on-chip memory are written and read by a SEPARATE
    softmax: written by the product, the mask, the difference to the maximum, the exponential and the
    quotient; read by the last four, the maximum, the sum and the product with the values
    (transformers-neuronx 7a30b42, llama/hlo.py).
    separate_from: fewest prompts in a step whose softmax is SEPARATE; fewer run as SQUARE.
    kernel: for prompts in shorter buckets than causal_from, which has the shortest bucket of a causal
    kernel, on cores of one physical core and of two.
    expands_kv: where keys and values are copied to more ranks than there are heads, each query head has its
    own copy.
    gathers_kv: a sequence's keys and values are read token by token, as slots for continuous batching lie
    in memory, not in one piece.
    masks_window: a window is only a mask: hidden keys are kept, read and computed as all others.
    batch_innermost: hidden states are [width, tokens, sequences] (HSB), so that the elements of the keys
    and values of one of several prompts are not contiguous.
    rewrites_kv: a step of a beam search picks its beams' keys and values, appends to them, and writes all
    of them back.
    fuses_rope: queries and keys are rotated within the kernel.
    softmax_after_reads: the softmax of a decode step begins when its keys and values are read, one lane of
    VectorE a query row.
    """

    kernel: AttentionKernel = AttentionKernel.SQUARE
    crossings: tuple[int, int] = (5, 7)
    separate_from: int = 1
    causal_from: tuple[int, int] = (0, 0)
    expands_kv: bool = False
    gathers_kv: bool = True
    masks_window: bool = False
    batch_innermost: bool = False
    rewrites_kv: bool = False
    fuses_rope: bool = False
    softmax_after_reads: bool = False

    def kernel_of(self, bucket: int, lnc: int) -> AttentionKernel:
        """Returns the kernel that prompts of a bucket run in."""
        return AttentionKernel.CAUSAL if bucket >= self.causal_from[lnc - 1] else self.kernel


class ExpertParallel(StrEnum):
    """The batches for which software divides experts among the tensor ranks."""

    FULL = "full"  # batches whose rows are routed to at least as many experts as there are
    ALL = "all"


class SamplingLocation(StrEnum):
    """The place where tokens are sampled: from logits that go to the host, or on the device."""

    HOST = "host"
    DEVICE = "device"


class OpKernels(Protocol):
    """Kernels that compute some Ops in place of the software's own."""

    def cost(self, op: object, own: Cost, fmt: Format, core: tuple[str, int]) -> Cost:
        """Returns the cost of an Op: `own` where no kernel computes it.

        core: its generation, and how many physical cores form it.  Raises UserError where the Op's kernel
        cannot compute it.
        """

    @property
    def texts(self) -> Sequence[str]:
        """The kernels as they were given."""

    def describe(
        self, ops: Iterable[object], fmt: Format, core: tuple[str, int]
    ) -> Sequence[Mapping[str, object]]:
        """Returns for each kernel, and each size of these Ops, how it compares and its simulated times; its
        `summary` is a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProfile:
    """The way in which a software stack runs a model.

    host_seconds: host time per step, one step after the other.
    host_seconds_per_logit: host time of sampling, per logit.
    prefill_buckets, decode_buckets: padding of the rows of a prompt, and of the context of a decode step.
    pads_batch: decode steps run all sequences that the graph was compiled for.
    batched_prefill: a batch's prompts run in one step.
    attention: how it attends.
    policy: the scheduler's.
    asynchronous: the host works on the next step while the device runs this one.
    change_seconds: host time of a step whose sequences are not those of the step before, instead of
    host_seconds (None: the same).
    batch_powers: with pads_batch, the batch is padded to a power of two.
    chunk: tokens of a prefill step unless another number is given (None: prompts as they come).
    sequence_parallel: ranks share the rows of a prefill between its collectives.
    kv_budget: the part of a core's memory for keys and values (None: all that is left).
    workers: batches of an encoder that clients keep in flight on each core: one runs, the others wait.
    result_copies: how often the results of such a model are copied on their way to the host.
    beams: sequences that an encoder-decoder generates for each one.
    expert_parallel: the batches for which experts may be divided among the tensor ranks (None: never).
    constants: by generation of cores, instead of the shipped ones.
    otherwise: the profile that holds instead where this one rests on a choice that no document states, such
    as the compiler's of a kernel: predictions then give the figures of both. A fit settles it.
    scales: the measured times of a model's steps relative to the predicted ones, from a fit.
    refines: the profile that a fit started from.
    narrowed: by kind of figure, the share of its interval's width that remains after a fit.
    kernels: the user's kernels for some Ops, in place of the software's (None: there are none).
    """

    name: str
    source: str
    host_seconds: float
    host_seconds_per_logit: float = 0.0
    prefill_buckets: Buckets = Buckets.EXACT
    decode_buckets: Buckets = Buckets.EXACT
    pads_batch: bool = False
    batched_prefill: bool = False
    attention: AttentionStyle = AttentionStyle()
    sampling: SamplingLocation = SamplingLocation.DEVICE
    policy: str = "segregated"
    asynchronous: bool = False
    workers: int = 1
    result_copies: int = 1
    change_seconds: float | None = None
    batch_powers: bool = False
    chunk: int | None = None
    sequence_parallel: bool = False
    kv_budget: KvBudget | None = None
    beams: int = 1
    expert_parallel: ExpertParallel | None = None
    constants: tuple[tuple[str, Constants], ...] = ()
    scales: Scales = UNSCALED
    refines: str = ""
    otherwise: str = ""
    narrowed: tuple[tuple[str, float], ...] = ()
    kernels: OpKernels | None = None

    def with_kernels(self, kernels: OpKernels | None) -> RuntimeProfile:
        """Returns the same software with other kernels."""
        return replace(self, kernels=kernels)

    @property
    def stack(self) -> str:
        """The name of the software: of the profile that a fit refined."""
        return self.refines or self.name

    def constants_of(self, version: str) -> Constants:
        """Returns the constants for cores of `version`."""
        return dict(self.constants).get(version) or shipped()[version]


def in_words(profile: RuntimeProfile) -> str:
    """Describes the lengths and batches that a profile pads, and their buckets."""
    prompts, contexts = profile.prefill_buckets, profile.decode_buckets
    padded = {"prompts": prompts, "contexts": contexts}
    if prompts is contexts:
        padded = {"prompts and contexts": prompts}
    parts = [f"{what} to {buckets}" for what, buckets in padded.items() if buckets is not Buckets.EXACT]
    if profile.pads_batch:
        parts.append(f"batches to {Buckets.POWERS if profile.batch_powers else 'all that the graph takes'}")
    return f"pads {', '.join(parts)}" if parts else "pads nothing"


def pad(
    shape: StepShape, profile: RuntimeProfile, longest: int, batch: int | None, lnc: int = 1
) -> StepShape:
    """Returns the step that runs for a batch.

    `longest`: tokens of a sequence; `batch`: sequences of the graph; `lnc`: physical cores of a core.
    """
    if not shape.sequences:
        return shape
    if shape.longest and profile.prefill_buckets is not Buckets.CHUNKS:
        return _whole(shape, profile, longest, batch)
    if shape.decodes:
        running, context = _decode(shape.sequences, shape.kv_tokens, profile, longest, batch)
        if context is None and running == shape.rows:
            return shape
        tokens = shape.kv_tokens * profile.beams if context is None else running * context
        rows = running * shape.each
        counts = (rows, rows, *shape.counts[2:])
        return StepShape(counts, running, tokens, tokens * shape.each, each=shape.each)
    if profile.prefill_buckets is Buckets.CHUNKS:
        chunk = profile.chunk or longest
        whole = profile.attention.kernel_of(chunk, lnc) is not AttentionKernel.CAUSAL
        return native_plugin.prefill(shape, longest, chunk, square=whole)
    return _prefill(shape, profile, longest, lnc)


def _whole(shape: StepShape, profile: RuntimeProfile, longest: int, batch: int | None) -> StepShape:
    """Pads sequences that are computed in this one step: all to the bucket of the longest one, and to the
    number of sequences of the graph."""
    if profile.prefill_buckets is Buckets.EXACT:
        return shape
    rows = profile.prefill_buckets.pad(shape.longest, longest)
    running = shape.sequences
    if profile.batched_prefill and profile.pads_batch:
        powers = profile.batch_powers
        running = native_plugin.decode_batch(running, batch) if powers else max(running, batch or 0)
    tokens = running * rows
    results = running if shape.logit_rows else 0
    return StepShape((tokens, results, *shape.counts[2:]), running, tokens, tokens * rows, rows)


def graphs_of(profile: RuntimeProfile, longest: int, batch: int) -> tuple[list[int], list[int]]:
    """Returns the lengths and batches for which graphs of whole sequences are compiled; empty: any."""
    lengths = profile.prefill_buckets
    if lengths in (Buckets.EXACT, Buckets.CHUNKS):
        return [], []
    sizes = {_whole(StepShape.whole([rows], 1), profile, longest, batch) for rows in range(1, longest + 1)}
    counts = {_whole(StepShape.whole([1] * n, n), profile, longest, batch) for n in range(1, batch + 1)}
    return sorted({size.longest for size in sizes}), sorted({count.sequences for count in counts})


def _decode(
    sequences: int, kv_tokens: int, profile: RuntimeProfile, longest: int, batch: int | None
) -> tuple[int, int | None]:
    """Returns the sequences that run, and the context of each; None: not padded."""
    running = (max(sequences, batch or 0) if profile.pads_batch else sequences) * profile.beams
    if profile.batch_powers:
        running = native_plugin.decode_batch(sequences, batch)
    if profile.decode_buckets is Buckets.EXACT:
        return running, None
    return running, profile.decode_buckets.pad(-(-kv_tokens // sequences), longest)


def _prefill(shape: StepShape, profile: RuntimeProfile, longest: int, lnc: int) -> StepShape:
    """Pads each sequence's rows to a bucket, and its context to that bucket plus its earlier context."""
    sequences = shape.sequences
    rows = profile.prefill_buckets.pad(-(-shape.rows // sequences), longest)
    causal = profile.attention.kernel_of(rows, lnc) is AttentionKernel.CAUSAL
    if causal and profile.prefill_buckets is Buckets.EXACT:
        return shape
    before = max(0, -(-shape.kv_tokens // sequences) - -(-shape.rows // sequences))
    context = rows + before
    square = rows * context
    masked = rows * (rows - 1) // 2 if causal else 0
    return StepShape(
        (sequences * rows, *shape.counts[1:]),
        sequences,
        sequences * context,
        sequences * (square - masked),
    )


def pad_contexts(
    sequences: int,
    kv_tokens: npt.NDArray[np.int64],
    profile: RuntimeProfile,
    longest: int,
    batch: int | None,
) -> tuple[int, npt.NDArray[np.int64]]:
    """Returns the sequences and the context tokens that decode steps run with: the result of `pad` for
    each."""
    running, context = _decode(sequences, sequences, profile, longest, batch)
    if context is None:
        return running, kv_tokens * profile.beams
    means = -(-kv_tokens // sequences)
    return running, running * _pad_each(means, profile.decode_buckets, longest)


def _pad_each(lengths: npt.NDArray[np.int64], buckets: Buckets, longest: int) -> npt.NDArray[np.int64]:
    """Returns `Buckets.pad` of each length."""
    most = int(lengths.max(initial=1))
    known = {buckets.pad(1, longest)}
    while max(known) < min(most, longest):
        known.add(buckets.pad(max(known) + 1, longest))
    sizes = np.array(sorted(known), np.int64)
    which = np.minimum(np.searchsorted(sizes, lengths), len(sizes) - 1)
    return np.maximum(lengths, sizes[which])
