"""Attention over latents equals the published form with keys and values of each head."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from corepipe.kernels import _native, packing
from tests.kernels.harness import bf16, elsewhere, int8, run_parts

F32 = npt.NDArray[np.float32]
SHAPES = [  # heads, part, rotary, latent, value
    (16, 128, 64, 512, 128),  # DeepSeek-V2-Lite's
    (3, 24, 8, 40, 20),
    (34, 16, 16, 16, 48),
    (5, 7, 2, 33, 9),
]
SMALL = SHAPES[1]
KINDS = ("fp32", "bf16", "int8-fp32", "int8")
BOUND = {"fp32": 4e-6, "bf16": 0.02, "int8-fp32": 4e-6, "int8": 0.02}
"""Largest difference of a result, relative to the largest: the products with latents are rounded to bf16 on
both sides."""


class Rig:
    """One Op with weights of its own; kind: the dtype of the computation, and that of the stored latents."""

    def __init__(
        self,
        shape: tuple[int, ...] = SMALL,
        kind: str = "fp32",
        *,
        blocks: int = 80,
        block_size: int = 16,
        most: int = 700,
        threads: int = 2,
    ) -> None:
        self.heads, self.part, self.rotary, self.rank, self.value = shape
        self.kind, self.rounded = kind, kind in ("bf16", "int8")
        self.scale = (self.part + self.rotary) ** -0.5
        rng = np.random.default_rng(shape)
        self.key_up, self.value_up = (
            self.stored(rng.standard_normal((self.heads, n, self.rank)) / self.rank**0.5)
            for n in (self.part, self.value)
        )
        widths = [self.heads * (self.rotary + self.part), self.rank, self.rotary, self.heads * self.value]
        computed = "bf16" if self.rounded else "fp32"
        key = self.rank + self.rotary
        self.cache = _native.KVCache(2, blocks, block_size, 1, key, computed, "int8" in kind, self.rank)
        self.program = _native.Program(widths, most, self.rounded)
        matrices = (
            [
                _native.Matrix(computed, packing.pack(computed, np.ascontiguousarray(m)), None, *m.shape)
                for m in of
            ]
            for of in (self.key_up.swapaxes(1, 2), self.value_up)
        )
        self.program.latent_attention((0, 1, 2), 3, self.cache, 1, *matrices, self.scale)
        self.pool = _native.Pool(threads)
        self.executor = _native.Executor(self.pool, [self.program], 3, widths[3])

    def stored(self, x: npt.NDArray[np.floating]) -> F32:
        return bf16(x.astype(np.float32)) if self.rounded else x.astype(np.float32)

    def sequence(self, seed: int, length: int) -> list[F32]:
        """Returns q, latents and the rotated parts beside them."""
        rng = np.random.default_rng(seed)
        widths = (self.heads * (self.rotary + self.part), self.rank, self.rotary)
        return [self.stored(rng.standard_normal((length, width))) for width in widths]

    def step(self, *chunks: tuple[Sequence[F32], int, int, Sequence[int]]) -> list[F32]:
        """Computes rows [begin, end) of each sequence, whose blocks follow, in one batch."""
        parts = [([x[begin:end] for x in arrays], begin, blocks) for arrays, begin, end, blocks in chunks]
        found = run_parts(self.executor, self.program, 3, parts)
        return [rows[:, : self.heads * self.value] for rows in found]

    def run(self, sequence: Sequence[F32], blocks: Sequence[int], *cuts: int) -> F32:
        ends = [0, *cuts, len(sequence[0])]
        return np.concatenate([self.step((sequence, a, b, blocks))[0] for a, b in pairwise(ends) if b > a])

    def expected(self, sequence: Sequence[F32]) -> npt.NDArray[np.float64]:
        """Computes the result with keys and values of each head, in float64."""
        q, latent, key_rope = sequence
        if "int8" in self.kind:
            kept = int8(np.concatenate((latent, key_rope), axis=1))
            latent, key_rope = np.split(kept, [self.rank], axis=1)
        q = q.astype(float).reshape(len(q), self.heads, -1).swapaxes(0, 1)
        keys = latent.astype(float) @ self.key_up.astype(float).swapaxes(1, 2)
        shared = np.broadcast_to(key_rope.astype(float), (self.heads, *key_rope.shape))
        scores = q @ np.concatenate((shared, keys), axis=2).swapaxes(1, 2) * self.scale
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        values = latent.astype(float) @ self.value_up.astype(float).swapaxes(1, 2)
        return (shares @ values).swapaxes(0, 1).reshape(len(latent), -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", elsewhere(SHAPES, SHAPES[1:]))
def test_it_is_attention_with_keys_and_values_of_each_head(shape: tuple[int, ...], kind: str) -> None:
    rig = Rig(shape, kind)
    sequence = rig.sequence(1, 150)
    wanted = rig.expected(sequence)
    found = rig.run(sequence, list(range(40, 50)))
    assert np.abs(found - wanted).max() <= BOUND[kind] * np.abs(wanted).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", elsewhere(SHAPES[1:], [SMALL]))
def test_bits_do_not_depend_on_cuts_company_threads_and_blocks(shape: tuple[int, ...], kind: str) -> None:
    """A context of two segments of keys; some cuts are between two keys of a pair."""
    lengths, tables = (620, 131), ([*range(39)], [*range(40, 49)])
    rig = Rig(shape, kind, threads=1)
    sequences = [rig.sequence(seed, length) for seed, length in enumerate(lengths)]
    alone = [rig.run(seq, blocks) for seq, blocks in zip(sequences, tables, strict=True)]
    wanted = rig.expected(sequences[0])
    assert np.abs(alone[0] - wanted).max() <= BOUND[kind] * np.abs(wanted).max()
    other = Rig(shape, kind, blocks=40, block_size=48, most=800, threads=3)
    for cuts in ((512,), (1, 2, 9, 42, 44, 107, 619)):
        np.testing.assert_array_equal(other.run(sequences[0], [*range(7, 20)], *cuts), alone[0])
    blocks = [*range(13)], [39, 20, 37]
    together = other.step(*[(seq, 0, len(seq[0]), own) for seq, own in zip(sequences, blocks, strict=True)])
    last = other.step(*[(s, len(s[0]) - 1, len(s[0]), own) for s, own in zip(sequences, blocks, strict=True)])
    for whole, found, decoded in zip(alone, together, last, strict=True):
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(decoded, whole[-1:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_costs_its_latent_once(kind: str) -> None:
    """It has no key and value, nor one for each head: 576 numbers with DeepSeek-V2's sizes."""
    bytes_of_number = {"fp32": 4, "bf16": 2}.get(kind, 1)
    scale = 4 if "int8" in kind else 0
    rig = Rig(SHAPES[0], kind, blocks=3, block_size=32)
    assert rig.cache.nbytes == 2 * 3 * 32 * (576 * bytes_of_number + scale)


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_what_is_no_number_stays_in_its_sequence_and_later_rows(kind: str) -> None:
    rig = Rig(SMALL, kind)
    sequence, other = rig.sequence(1, 70), rig.sequence(2, 70)
    wanted, alone = rig.run(sequence, [0, 1, 2, 3, 4]), rig.run(other, [5, 6, 7, 8, 9])
    sequence[1][33, 5] = np.nan
    found, beside = rig.step((sequence, 0, 70, [0, 1, 2, 3, 4]), (other, 0, 70, [5, 6, 7, 8, 9]))
    np.testing.assert_array_equal(found[:33], wanted[:33])
    assert np.isnan(found[33:]).all()
    np.testing.assert_array_equal(beside, alone)
    again = rig.run(other, [0, 1, 2, 3, 4], 33, 34)  # in blocks that still hold the data
    np.testing.assert_array_equal(again, alone)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"values": (1, 0, 2)}, "key_up must be"),
        ({"values": (0, 1, 1)}, "a query is its rotated elements and a part"),
        ({"shared": 24}, "the cache must hold latents"),
        ({"layer": 2}, "no layer 2"),
        ({"out": 0}, "elements a row|wide"),
        ({"heads": 2}, "a query is"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, complaint: str) -> None:
    given = {"values": (0, 1, 2), "out": 3, "shared": 40, "layer": 1, "heads": 3, **changes}
    program = _native.Program([3 * 32, 40, 8, 3 * 20], 8, round_bf16=False)
    cache = _native.KVCache(2, 4, 16, 1, 48, "fp32", shared=given["shared"])
    matrices = [
        [_native.Matrix("fp32", packing.pack("fp32", np.zeros(shape, np.float32)), None, *shape)]
        * given["heads"]
        for shape in ((40, 24), (20, 40))
    ]
    with pytest.raises(ValueError, match=complaint):
        program.latent_attention(given["values"], given["out"], cache, given["layer"], *matrices, 0.1)


def test_latents_have_one_head_and_no_attention_of_another_kind() -> None:
    with pytest.raises(ValueError, match="of latents there is one head"):
        _native.KVCache(1, 4, 16, 2, 48, "fp32", shared=40)
    program = _native.Program([48, 48, 48, 48], 8, round_bf16=False)
    cache = _native.KVCache(1, 4, 16, 1, 48, "fp32", shared=40)
    with pytest.raises(ValueError, match="of what is no latent"):
        program.attention(0, 1, 2, 3, cache, 0, 1, 0.1)
