"""A batch that follows another by itself: its results, and the cases in which it does not start."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from corepipe.kernels import _native
from tests.kernels.harness import i32, sampling

VOCAB, WIDTH, ROWS = 24, 24, 16
NOTHING = i32()


@pytest.fixture
def table() -> np.ndarray:
    """Returns a table with which the likeliest token after t is t + 1."""
    noise = np.random.default_rng(1).standard_normal((VOCAB, WIDTH)).astype(np.float32)
    return noise + 20 * np.roll(np.eye(VOCAB, dtype=np.float32), 1, axis=1)


@pytest.fixture
def pool() -> Iterator[_native.Pool]:
    pool = _native.Pool(2)
    yield pool
    pool.close()


@pytest.fixture
def executor(table: np.ndarray, pool: _native.Pool) -> _native.Executor:
    program = _native.Program([WIDTH] * 2, ROWS, round_bf16=False)
    program.embed(0, table)
    program.select_rows(0, 1)
    return _native.Executor(pool, [program], 1, WIDTH)


def submit(executor: _native.Executor, *sequences: list[int], **changes: object) -> int:
    """Submits sequences from position 0, whose last row samples; greedily by default."""
    ends = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    arguments = {
        "tokens": i32(*(token for tokens in sequences for token in tokens)),
        "positions": i32(*(at for tokens in sequences for at in range(len(tokens)))),
        "sequence_starts": ends,
        "block_tables": np.zeros((len(sequences), 1), np.int32),
        "logit_rows": ends[1:] - 1,
        "sampling": sampling(len(sequences), temperature=[0.0] * len(sequences)),
    } | changes
    return executor.submit(**arguments)


def tokens(executor: _native.Executor, ticket: int) -> list[int]:
    return executor.wait(ticket)["tokens"].tolist()


def test_it_takes_the_tokens_that_are_drawn(executor: _native.Executor) -> None:
    first = submit(executor, [9, 1], [4], [7, 8, 2])
    second = executor.go_on(first, NOTHING)
    third = executor.go_on(second, NOTHING)
    assert tokens(executor, first) == [2, 5, 3]
    assert executor.adopt(second)
    assert executor.adopt(third)
    assert tokens(executor, second) == [3, 6, 4]
    assert tokens(executor, third) == [4, 7, 5]


def test_it_draws_as_if_it_had_been_submitted(executor: _native.Executor) -> None:
    """Seeds, positions and alternatives are those of the next token."""
    asked = {"temperature": [3.0, 0.0], "seed": [5, 6], "top_logprobs": [3, -1]}
    first = submit(executor, [1, 2], [3], sampling=sampling(2, position=[2, 1], **asked))
    following = executor.go_on(first, NOTHING)
    drawn = tokens(executor, first)
    same = {
        "tokens": i32(*drawn),
        "positions": i32(2, 1),
        "sequence_starts": i32(0, 1, 2),
        "logit_rows": i32(0, 1),
        "sampling": sampling(2, position=[3, 2], **asked),
    }
    found, expected = executor.wait(following), executor.wait(submit(executor, [1], [2], **same))
    for name in ("tokens", "logprobs", "top_ids", "top_logprobs"):
        assert np.array_equal(found[name], expected[name], equal_nan=name.endswith("logprobs")), name


def test_one_that_comes_when_the_other_is_done(executor: _native.Executor) -> None:
    first = submit(executor, [1])
    tokens(executor, submit(executor, [5]))  # the first batch is done, and its ticket not redeemed
    assert tokens(executor, executor.go_on(first, NOTHING)) == [3]
    assert not executor.adopt(executor.go_on(first, i32(7, 2)))


def test_a_token_that_ends_a_sequence_drops_it_and_what_goes_on_from_it(executor: _native.Executor) -> None:
    gate = threading.Event()
    executor.watch(lambda _: gate.wait())
    first = submit(executor, [1], [4])
    dropped = executor.go_on(first, i32(9, 5))
    behind = executor.go_on(dropped, NOTHING)
    gate.set()
    assert tokens(executor, first) == [2, 5]
    assert not executor.adopt(dropped)
    with pytest.raises(ValueError, match="unknown ticket"):
        executor.wait(dropped)
    with pytest.raises(ValueError, match="was dropped"):
        executor.wait(behind)


def test_rows_without_numbers_drop_it(table: np.ndarray, pool: _native.Pool) -> None:
    table[3] = np.nan
    program = _native.Program([WIDTH] * 2, ROWS, round_bf16=False)
    program.embed(0, table)
    program.select_rows(0, 1)
    executor = _native.Executor(pool, [program], 1, WIDTH)
    first = submit(executor, [1], [3])
    following = executor.go_on(first, NOTHING)
    assert executor.wait(first)["overflowed"] == [1]
    assert not executor.adopt(following)


def test_something_to_hear_drops_it_and_nothing_else(executor: _native.Executor) -> None:
    ear, mouth = os.pipe()
    executor.heed([ear])
    first = submit(executor, [1])
    following = executor.go_on(first, NOTHING)
    assert tokens(executor, first) == [2]
    assert executor.adopt(following), "there is nothing to hear yet"
    os.write(mouth, b"!")
    assert tokens(executor, following) == [3]
    second = submit(executor, [4])
    unheard = executor.go_on(second, NOTHING)
    assert tokens(executor, second) == [5], "what was asked for runs"
    assert not executor.adopt(unheard)
    os.read(ear, 1)
    assert tokens(executor, executor.go_on(submit(executor, [6]), NOTHING)) == [8]
    executor.heed([])
    os.close(ear)
    os.close(mouth)


def test_what_is_dropped_before_it_starts_never_does(executor: _native.Executor) -> None:
    entered, gate, started = threading.Event(), threading.Event(), []
    executor.watch(lambda _: (started.append(1), entered.set(), gate.wait()))
    first = submit(executor, [1])
    following = executor.go_on(first, NOTHING)
    executor.go_on(following, NOTHING)
    entered.wait()
    executor.drop(following)
    gate.set()
    assert tokens(executor, first) == [2]
    assert tokens(executor, submit(executor, [7])) == [8]
    assert len(started) == 2


def test_what_has_started_may_be_dropped(executor: _native.Executor) -> None:
    first = submit(executor, [1])
    following = executor.go_on(first, NOTHING)
    assert tokens(executor, first) == [2]
    executor.drop(following)
    assert tokens(executor, submit(executor, [7])) == [8]


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": None},
        {"logit_rows": i32(0, 2)},
        {"logit_rows": i32(1), "sampling": sampling(1)},
        {"sampling": sampling(2, chosen=[-1, 3])},
        {"sampling": sampling(2, bias=[{1: 2.0}, {}])},
        {"sampling": sampling(2, seen=[{}, {1: 2}])},
    ],
)
def test_refuses_what_does_not_draw_by_its_logits(executor: _native.Executor, changes: dict) -> None:
    ticket = submit(executor, [1, 2], [3], **changes)
    with pytest.raises(ValueError, match=r"draw|chosen"):
        executor.go_on(ticket, NOTHING)
    executor.wait(ticket)


def test_a_pool_may_close_before_it(executor: _native.Executor, pool: _native.Pool) -> None:
    first = submit(executor, [1])
    following = executor.go_on(first, NOTHING)
    executor.wait(first)
    executor.wait(following)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        submit(executor, [1])
