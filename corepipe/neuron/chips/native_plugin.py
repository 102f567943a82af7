"""The rules of vLLM's native plugin for Neuron (trn2 and trn3): graphs, chunks, kernels and memory for KV.

Sources: vllm-neuron/docs/ of aws-neuron-sdk at 81ce03ae (SDK 2.32), named below as `docs`, and where they say
nothing the plugin's code as forks have it (AWShtokoyo/vllm-neuron at 01c89e38, gregnetau/vllm-neuron at
3c0a51c1), named `forks`; a released image may differ from those.
"""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.neuron.chips.hardware import GIB
from corepipe.neuron.step import StepShape

DEFAULT_CHUNK = 2048
"""Default tokens per step: vLLM's max_num_batched_tokens (docs, reference-configuration.md)."""

CHUNKS = (512, 1024, 2048, 4096, 8192)
"""Allowed tokens per step for prompts that come in chunks (docs, prefix-caching.md; one page ends at
4096)."""

LONGEST_SINGLE_SHOT = 16_384
"""Longest prompt that is computed in one step (forks, utils/bucket_utils.py)."""

SMALLEST_BUCKET = 128

FLASH_HEADS, FLASH_TOKENS, FLASH_HEAD_DIM = 512, 131_072, 128
"""Limits of the flash kernel of a prefill: batch x heads of a core, tokens, elements of a head (forks,
functional/attention/attention_cte.py)."""

KV_OF_MEMORY, KV_CAP, KV_LEAST = 0.9, 0.27, GIB
"""Shares of a core's memory, and bytes (docs, determine_available_memory_design.md)."""


def is_chunked(longest: int, chunk: int) -> bool:
    """Returns True if prompts come in chunks: a step cannot compute the longest sequence whole."""
    return chunk < longest


def prefill_buckets(longest: int, chunk: int, tensor: int = 1) -> tuple[int, ...]:
    """Returns the tokens that prefill graphs are compiled for: one chunk, or 128, 256 ... and the longest
    sequence.

    Only sizes above the tensor degree that it divides count (docs, reference-configuration.md; forks,
    utils/bucket_utils.py).
    """
    if is_chunked(longest, chunk):
        return (chunk,)
    powers = (1 << power for power in range(SMALLEST_BUCKET.bit_length() - 1, (longest - 1).bit_length()))
    return tuple(size for size in (*powers, longest) if size > tensor and size % tensor == 0)


def batch_buckets(most: int) -> tuple[int, ...]:
    """Returns the numbers of sequences that decode graphs are compiled for: 1, 2, 4 ... and the maximum."""
    return (*(1 << power for power in range((most - 1).bit_length())), most)


def prefill(shape: StepShape, longest: int, chunk: int, *, square: bool = False) -> StepShape:
    """Returns the step that runs for one prompt, or one chunk of it.

    A prompt's chunk fills the one graph and reads whole segments of the earlier context; a prompt that is
    computed whole fills the next bucket.  square: the scores are computed whole, masked or not.
    """
    sequences = shape.sequences
    rows = -(-shape.rows // sequences)
    before = max(0, -(-shape.kv_tokens // sequences) - rows)
    if is_chunked(longest, chunk):
        rows, before = -(-rows // chunk) * chunk, -(-before // chunk) * chunk
    else:
        rows = next((size for size in prefill_buckets(longest, chunk) if size >= rows), rows)
    context = rows + before
    attended = rows * context if square else rows * before + rows * (rows + 1) // 2
    return StepShape(
        (sequences * rows, *shape.counts[1:]), sequences, sequences * context, sequences * attended
    )


def decode_batch(sequences: int, most: int | None) -> int:
    """Returns the sequences of the graph that runs for so many; `most`: those of the largest graph (None: not
    known)."""
    power = 1 << (sequences - 1).bit_length()
    return power if most is None else max(sequences, min(power, most))


def takes_flash(heads: int, head_dim: int, longest: int, batch: int = 1) -> bool:
    """Returns True if prefills use the flash kernel, which computes only the scores that the causal mask
    leaves."""
    return batch * heads <= FLASH_HEADS and head_dim <= FLASH_HEAD_DIM and longest <= FLASH_TOKENS


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The memory for keys and values beside the weights: at most `cap` of all memory, and at most what the
    weights leave of `of_memory`; but at least `least` bytes."""

    of_memory: float = KV_OF_MEMORY
    cap: float = KV_CAP
    least: int = KV_LEAST

    def bytes(self, memory: int, weights: int) -> int:
        """Returns the bytes for a core with so much memory and such weights."""
        return max(self.least, int(min(self.of_memory * memory - weights, self.cap * memory)))
