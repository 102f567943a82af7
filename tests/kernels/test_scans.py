"""Recurrent layers equal a convolution, and a product of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from corepipe.kernels import _native
from tests.kernels.harness import run_parts

F32 = npt.NDArray[np.float32]
HEADS, GROUPS, WIDTH, STATES, TAPS = 6, 2, 32, 19, 4
INNER, SHARED = HEADS * WIDTH, GROUPS * STATES
MOST = 200
LIMITS = (0.05, 1.5)
BOUND = 3e-6
"""Largest difference of a result in fp32, relative to the largest."""


class Rig:
    """A convolution that makes a scan's x, and the scan, over blocks of `block_size` positions."""

    def __init__(self, blocks: int, block_size: int, *, rounded: bool = False, threads: int = 2) -> None:
        rng = np.random.default_rng(3)
        self.taps = rng.standard_normal((TAPS, INNER)).astype(np.float32)
        self.bias = rng.standard_normal(INNER).astype(np.float32)
        self.rates = -rng.uniform(0.05, 4, HEADS).astype(np.float32)
        self.dt_bias, self.skip = rng.standard_normal((2, HEADS)).astype(np.float32)
        self.program = _native.Program([INNER, SHARED, SHARED, HEADS, INNER, INNER], MOST, rounded)
        kept = (TAPS - 1) * INNER
        cache = _native.StateCache(blocks, block_size, kept + INNER * STATES)
        self.program.convolve(0, 4, self.taps, self.bias, "silu", (cache, 0))
        of_heads = (self.rates, self.dt_bias, self.skip)
        self.program.scan((4, 1, 2, 3), 5, of_heads, LIMITS, STATES, (cache, kept))
        self.pool = _native.Pool(threads)
        self.executor = _native.Executor(self.pool, [self.program], 5, INNER)

    def run(self, parts: Sequence[tuple[Sequence[F32], int]], tables: Sequence[Sequence[int]]) -> list[F32]:
        """Returns the results of these rows of sequences, each from a position on."""
        placed = [(*part, blocks) for part, blocks in zip(parts, tables, strict=True)]
        return [rows[:, :INNER] for rows in run_parts(self.executor, self.program, 5, placed)]

    def convolved(self, x: F32) -> F32:
        """Computes the convolution in float64."""
        rows = np.concatenate((np.zeros((TAPS - 1, INNER)), x))
        sums = self.bias + sum(self.taps[k].astype(float) * rows[k : k + len(x)] for k in range(TAPS))
        return sums / (1 + np.exp(-sums))

    def scanned(self, rows: Sequence[F32]) -> F32:
        """Computes the scan as a product of matrices (Dao & Gu 2024, section 3), in float64."""
        x, b, c, dt = (array.astype(float) for array in rows)
        x, found = self.convolved(x), np.empty((len(x), INNER))
        steps = np.clip(np.logaddexp(0, dt + self.dt_bias), *LIMITS)
        for head in range(HEADS):
            own, group = slice(head * WIDTH, (head + 1) * WIDTH), head // (HEADS // GROUPS) * STATES
            shared = slice(group, group + STATES)
            passed = np.cumsum(steps[:, head]) * self.rates[head]
            decay = np.tril(np.exp(np.minimum(passed[:, None] - passed, 0)))
            mixed = decay * (c[:, shared] @ b[:, shared].T) * steps[:, head]
            found[:, own] = mixed @ x[:, own] + self.skip[head] * x[:, own]
        return found


def rows_of(seed: int, count: int) -> list[F32]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal((count, width)).astype(np.float32) for width in (INNER, SHARED, SHARED, HEADS)
    ]


def cut(rows: Sequence[F32], begin: int, end: int) -> list[F32]:
    return [array[begin:end] for array in rows]


@pytest.mark.parametrize("count", [1, 2, 63, 150])
def test_it_is_the_product_that_it_is_equal_to(count: int) -> None:
    rig, rows = Rig(1, 512), rows_of(count, count)
    (found,) = rig.run([(rows, 0)], [[0]])
    want = rig.scanned(rows)
    assert np.abs(found - want).max() <= BOUND * np.abs(want).max()


@pytest.mark.parametrize("rounded", [False, True])
def test_bits_do_not_depend_on_cuts_company_threads_and_blocks(rounded: bool) -> None:
    sequences = [rows_of(7, 150), rows_of(8, 97)]
    alone = [Rig(1, 512, rounded=rounded, threads=1).run([(rows, 0)], [[0]])[0] for rows in sequences]
    rng, size = np.random.default_rng(9), 64
    rig, tables = Rig(8, size, rounded=rounded), [[5, 0, 7], [2, 6, 1]]
    done, found = [0, 0], [[], []]
    while done != [150, 97]:
        parts, some = [], []
        for number, rows in enumerate(sequences):
            end = min(len(rows[0]), done[number] + int(rng.choice([1, 2, 3, 30, 70])))
            if end > done[number]:
                parts.append((cut(rows, done[number], end), done[number]))
                some.append(number)
                done[number] = end
        for number, made in zip(some, rig.run(parts, [tables[number] for number in some]), strict=True):
            found[number].append(made)
    for number, want in enumerate(alone):
        np.testing.assert_array_equal(np.concatenate(found[number]), want)


def test_a_state_is_read_from_one_block_and_written_to_the_next() -> None:
    """The first block is unchanged: another sequence may continue from it."""
    rows, others = rows_of(1, 100), rows_of(2, 36)
    rig = Rig(4, 64)
    rig.run([(cut(rows, 0, 64), 0)], [[3, 0]])
    (first,) = rig.run([(cut(rows, 64, 100), 64)], [[3, 1]])
    (other,) = rig.run([(others, 64)], [[3, 2]])
    (again,) = rig.run([(cut(rows, 64, 100), 64)], [[3, 0]])
    np.testing.assert_array_equal(first, again)
    assert np.abs(other - first).max() > 0.1


def test_a_sequence_begins_with_zeros_whatever_its_block_held() -> None:
    rows, rig = rows_of(4, 20), Rig(1, 64)
    fresh, again = (rig.run([(rows, 0)], [[0]])[0] for _ in range(2))
    np.testing.assert_array_equal(fresh, again)


def test_what_is_no_number_stays_in_its_sequence_and_its_head() -> None:
    rows, others, rig = rows_of(5, 9), rows_of(6, 9), Rig(2, 64)
    want = rig.run([(others, 0)], [[1]])[0]
    rows[3][4, 2] = np.nan
    found, other = rig.run([(rows, 0), (others, 0)], [[0], [1]])
    np.testing.assert_array_equal(other, want)
    bad = np.isnan(found).reshape(9, HEADS, WIDTH)
    assert bad[4:, 2].all()
    assert not bad[:4].any()
    assert not np.delete(bad, 2, axis=1).any()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"states": 20}, "groups . states"),
        ({"limits": (1.0, 0.5)}, "no more than the most"),
        ({"values": (0, 1, 2, 1)}, "x must be heads . head_dim"),
        ({"offset": 5}, "ends beyond the cache"),
        ({"out": 0}, "in place"),
        ({"heads": 5}, "for each head"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, complaint: str) -> None:
    program = _native.Program([INNER, SHARED, SHARED, HEADS, INNER], 8, round_bf16=False)
    cache = _native.StateCache(1, 64, INNER * STATES)
    given = {"values": (0, 1, 2, 3), "out": 4, "limits": LIMITS, "states": STATES, "offset": 0} | changes
    vectors = tuple(np.ones(given.pop("heads", HEADS), np.float32) for _ in range(3))
    with pytest.raises(ValueError, match=complaint):
        program.scan(
            given["values"], given["out"], vectors, given["limits"], given["states"], (cache, given["offset"])
        )


def test_positions_beyond_the_table_are_refused() -> None:
    rig, rows = Rig(1, 16), rows_of(1, 17)
    with pytest.raises(ValueError, match="beyond the sequence's blocks"):
        rig.run([(rows, 0)], [[0]])
