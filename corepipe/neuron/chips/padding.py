"""Padding of a batch to the static shapes that a runtime profile compiles.

Contexts are padded by their mean over the sequences: the real stack uses the bucket of the longest one.  With
drafts every sequence has as many rows, whether it has drafts or not; its keys and values are read once.
Sequences that are computed whole are padded to the bucket of the longest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corepipe.neuron.chips import native_plugin
from corepipe.neuron.chips.runtime_profile import AttentionKernel, Buckets, RuntimeProfile
from corepipe.neuron.step import StepShape


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
