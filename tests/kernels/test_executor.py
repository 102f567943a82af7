from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest

from corepipe.kernels import _native
from tests.kernels.harness import bf16, i32, sampling, value
from tests.kernels.sampling_reference import sample_reference
from tests.servers import until

VOCAB, WIDTH, ROWS = 50, 24, 16


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((VOCAB, WIDTH)).astype(np.float32)


@pytest.fixture
def pool() -> Iterator[_native.Pool]:
    pool = _native.Pool(2)
    yield pool
    pool.close()


def program(values: int = 3, *, round_bf16: bool = False, width: int = WIDTH) -> _native.Program:
    return _native.Program([width] * values, ROWS, round_bf16)


def submit(executor: _native.Executor, tokens: list[int], rows: list[int], /, **changes: object) -> int:
    """Submits one sequence from position 0."""
    arguments = {
        "tokens": i32(*tokens),
        "positions": np.arange(len(tokens), dtype=np.int32),
        "sequence_starts": i32(0, len(tokens)),
        "block_tables": np.zeros((1, 1), np.int32),
        "logit_rows": i32(*rows),
        "sampling": None,
    } | changes
    return executor.submit(**arguments)


def run(executor: _native.Executor, tokens: list[int], rows: list[int], /, **changes: object) -> dict:
    return executor.wait(submit(executor, tokens, rows, **changes))


def embedding(pool: _native.Pool, table: np.ndarray) -> _native.Executor:
    p = program()
    p.embed(0, table)
    p.select_rows(0, 1)
    return _native.Executor(pool, [p], 1, WIDTH)


@pytest.mark.parametrize("round_bf16", [True, False])
@pytest.mark.parametrize("stored", ["fp32", "bf16"])
def test_embed_add_glu_select(stored: str, round_bf16: bool, table: np.ndarray, pool: _native.Pool) -> None:
    p = program(4, round_bf16=round_bf16)
    p.embed(0, table if stored == "fp32" else table.astype(ml_dtypes.bfloat16).view(np.uint16))
    p.add(0, 0, 1)
    p.glu(0, 1, 2)
    p.select_rows(2, 3)
    got = run(_native.Executor(pool, [p], 3, WIDTH), [3, 49, 0, 7], [1, 3])
    kept = bf16 if round_bf16 else np.asarray
    x = (bf16 if stored == "bf16" or round_bf16 else np.asarray)(table)[[49, 7]]
    gate = x.astype(np.float64)
    expected = kept((gate / (1 + np.exp(-gate)) * kept(x + x)).astype(np.float32))
    assert np.allclose(got["values"], expected, rtol=2.0**-7 if round_bf16 else 1e-6)
    assert got["values"].shape == (2, WIDTH)
    assert got["tokens"].size == 0
    assert got["seconds"] > 0


def test_rows_beyond_the_batch_stay(table: np.ndarray, pool: _native.Pool) -> None:
    p = program()
    p.embed(0, table)
    p.add(0, 0, 2)
    p.select_rows(0, 1)
    for i in range(3):
        value(p, i)[:] = 77
    run(_native.Executor(pool, [p], 1, WIDTH), [1, 2, 3], [2])
    assert (value(p, 0)[3:] == 77).all()
    assert (value(p, 2)[3:] == 77).all()
    assert (value(p, 1)[1:] == 77).all()
    assert np.array_equal(value(p, 1)[0], table[3])


def test_two_programs_send_and_receive(table: np.ndarray, pool: _native.Pool) -> None:
    first, second = program(), program()
    first.embed(0, table)
    first.send(0, 1)
    first.add(0, 0, 1)
    first.send(1, 1)
    first.receive(2, 1, rows="logits")
    second.receive(0, 0)
    second.receive(1, 0)
    second.add(0, 1, 2)
    second.select_rows(2, 1)
    second.send(1, 0, rows="logits")
    executor = _native.Executor(pool, [first, second], 1, WIDTH)
    seen: list[int] = []
    executor.watch(seen.append)
    got = run(executor, [4, 5, 6], [0, 2])
    assert np.allclose(got["values"], 3 * table[[4, 6]])
    assert np.array_equal(value(first, 2)[:2], got["values"])
    assert seen == [0, 1, 0] == [span[0] for span in got["spans"]]
    ends = [0, *(end for _, _, end in got["spans"])]
    assert all(end <= start <= stop for end, (_, start, stop) in zip(ends, got["spans"], strict=False))
    executor.watch(None)
    run(executor, [4], [0])
    assert len(seen) == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_it_beats_while_it_computes_and_not_without_work(table: np.ndarray, threads: int) -> None:
    beats = np.zeros(1, np.int64)
    pool = _native.Pool(threads, beats)
    executor = embedding(pool, table)
    assert beats[0] == 0
    run(executor, [1, 2], [0])
    first = int(beats[0])
    assert first >= 2  # one for each Op
    run(executor, [1, 2], [0])
    assert beats[0] >= first + 2
    after = int(beats[0])
    pool.close()
    assert beats[0] == after


@pytest.mark.parametrize("beats", [np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros((1, 1), np.int64)])
def test_beats_are_counted_in_one_int64(beats: np.ndarray) -> None:
    with pytest.raises(TypeError):
        _native.Pool(1, beats)


@pytest.mark.parametrize("round_bf16", [True, False])
def test_all_reduce_adds_in_rank_order(round_bf16: bool, table: np.ndarray, pool: _native.Pool) -> None:
    tables = [table, 1e4 * table[::-1], -1e4 * table[::-1] + table]
    programs = [program(round_bf16=round_bf16) for _ in tables]
    for p, own in zip(programs, tables, strict=True):
        p.embed(0, own.copy())
        p.all_reduce(0, 0, [2, 0, 1])
        p.select_rows(0, 1)
    got = run(_native.Executor(pool, programs, 1, WIDTH), [9, 10], [0, 1])["values"]
    kept = bf16 if round_bf16 else np.asarray
    x = [kept(t)[[9, 10]] for t in tables]
    assert np.array_equal(got, kept((x[2] + x[0]) + x[1]))
    for p in programs:
        assert np.array_equal(value(p, 1)[:2], got)


def test_all_gather_drops_padding(table: np.ndarray, pool: _native.Pool) -> None:
    programs = [_native.Program([WIDTH, WIDTH + 5, WIDTH + 5], ROWS, round_bf16=False) for _ in range(2)]
    for i, p in enumerate(programs):
        p.embed(0, table * (i + 1))
        p.all_gather(0, 1, [0, 1], [WIDTH, 5])
        p.select_rows(1, 2)
    got = run(_native.Executor(pool, programs, 2, WIDTH + 5), [9, 10], [1])["values"]
    assert np.array_equal(got, np.concatenate([table[[10]], 2 * table[[10], :5]], -1))
    assert np.array_equal(value(programs[0], 2)[:1], got)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a, b: (a.receive(0, 1), b.receive(0, 0)), "never comes"),
        (lambda a, b: a.send(0, 1), "never receives"),
        (lambda a, b: a.all_reduce(0, 1, [0, 1]), "never comes"),
        (lambda a, b: (a.all_reduce(0, 1, [0, 1]), b.all_reduce(0, 1, [1, 0])), "never comes"),
        (lambda a, b: a.all_reduce(0, 1, [1]), "not in the group"),
        (lambda a, b: a.send(0, 5), "partner that is not there"),
        (lambda a, b: (a.send(0, 1), b.receive(0, 0, rows="logits")), "another shape"),
        (
            lambda a, b: (a.all_reduce(0, 1, [0, 1]), b.select_rows(0, 2), b.all_reduce(2, 1, [0, 1])),
            "collective of another shape",
        ),
    ],
)
def test_exchanges_that_do_not_match(build: Callable, message: str, pool: _native.Pool) -> None:
    a, b = program(), program()
    build(a, b)
    with pytest.raises(ValueError, match=message):
        _native.Executor(pool, [a, b], 0, WIDTH)


def test_batches_queue_in_order_over_executors(table: np.ndarray, pool: _native.Pool) -> None:
    executors = [embedding(pool, table), embedding(pool, -table)]
    order: list[int] = []
    gate = threading.Event()
    executors[0].watch(lambda _: (gate.wait(), order.append(0)))
    executors[1].watch(lambda _: order.append(1))
    which = [0, 1, 1, 0, 1]
    tickets = [submit(executors[i], [n], [0]) for n, i in enumerate(which)]
    gate.set()
    for n, i in reversed(list(enumerate(which))):
        got = executors[i].wait(tickets[n])["values"]
        assert np.array_equal(got[0], table[n] * (1 - 2 * i))
    assert order == which


def test_arguments_are_copied(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    gate = threading.Event()
    executor.watch(lambda _: gate.wait())
    tokens, rows = i32(8), i32(0)
    ticket = executor.submit(tokens, i32(0), i32(0, 1), np.zeros((1, 1), np.int32), rows, None)
    tokens[:] = 9
    rows[:] = 5
    gate.set()
    assert np.array_equal(executor.wait(ticket)["values"][0], table[8])


def test_a_batch_without_logits(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    assert run(executor, [1, 2], [])["values"].shape == (0, WIDTH)
    assert run(executor, [1, 2], [], sampling=sampling(0))["tokens"].shape == (0,)


def test_sampling_in_the_executor(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    rows = [0, 2, 3]
    batch = sampling(3, temperature=[0.0, 1.0, 1.0], top_logprobs=[2, -1, 0], position=[0, 1, 2])
    got = run(executor, [3, 4, 5, 6], rows, sampling=batch)
    expected = sample_reference(table[[3, 5, 6]], batch)
    assert got["values"] is None
    assert np.array_equal(got["tokens"], expected.tokens)
    assert np.array_equal(got["top_ids"], expected.top_ids)
    assert np.allclose(got["logprobs"], expected.logprobs, equal_nan=True, atol=1e-5)


MASKED = {"sampling": sampling(3, masked=[0, -1, 1], temperature=[0.0, 0.0, 1.0])}
MASKS = np.array([[1 << 5 | 1 << 9], [1 << 20 | 1 << 2]], np.int32)


def test_masks_may_come_while_a_batch_is_computed(table: np.ndarray, pool: _native.Pool) -> None:
    """They are copied; batches before and after have none, or others."""
    executor = embedding(pool, table)
    entered, gate = threading.Event(), threading.Event()
    executor.watch(lambda _: (entered.set(), gate.wait()))
    before = submit(executor, [1], [0], sampling=sampling(1))
    masked, after = (submit(executor, [3, 4, 5, 6], [0, 2, 3], **MASKED) for _ in range(2))
    executor.give_masks(after, MASKS[::-1].copy())
    entered.wait()
    masks = MASKS.copy()
    executor.give_masks(masked, masks)
    masks[:] = 0
    gate.set()
    rows = table[[3, 5, 6]]
    for ticket, given in ((before, None), (masked, MASKS), (after, MASKS[::-1])):
        expected = sample_reference(rows, MASKED["sampling"], given) if given is not None else None
        got = executor.wait(ticket)["tokens"]
        assert got.tolist() == [int(table[1].argmax())] if expected is None else expected.tokens.tolist()


def test_a_batch_waits_for_its_masks(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    ticket = submit(executor, [3, 4, 5, 6], [0, 2, 3], **MASKED)
    found: list[dict] = []
    other = embedding(pool, table)
    later = submit(other, [1], [0])
    waiting = threading.Thread(target=lambda: found.append(other.wait(later)))
    waiting.start()
    waiting.join(0.2)  # a batch that does not wait would have failed by now, and the other one would run
    assert not found, "batches run one after the other"
    executor.give_masks(ticket, MASKS)
    waiting.join()
    assert executor.wait(ticket)["tokens"].shape == (3,)
    assert np.array_equal(found[0]["values"][0], table[1])


def test_a_batch_that_is_never_given_its_masks_fails(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    ticket = submit(executor, [3, 4, 5, 6], [0, 2, 3], **MASKED)
    with pytest.raises(RuntimeError, match="never given its masks"):
        executor.wait(ticket)
    assert np.array_equal(run(executor, [1], [0])["values"][0], table[1])


def test_an_executor_may_go_while_a_batch_waits_for_masks(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    for _ in range(3):
        submit(executor, [3, 4, 5, 6], [0, 2, 3], **MASKED)
    del executor
    assert np.array_equal(run(embedding(pool, table), [2], [0])["values"][0], table[2])


def test_a_pool_may_close_while_a_batch_waits_for_masks(table: np.ndarray) -> None:
    pool = _native.Pool(2)
    executor = embedding(pool, table)
    ticket = submit(executor, [3, 4, 5, 6], [0, 2, 3], **MASKED)
    pool.close()
    with pytest.raises(RuntimeError, match=r"never given its masks|closed"):
        executor.wait(ticket)


def test_refuses_masks(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    plain = submit(executor, [1], [0], sampling=sampling(1))
    with pytest.raises(ValueError, match="no masked rows"):
        executor.give_masks(plain, MASKS)
    ticket = submit(executor, [3, 4, 5, 6], [0, 2, 3], **MASKED)
    for masks in (MASKS[:1], np.zeros((2, 2), np.int32), np.zeros((0, 1), np.int32)):
        with pytest.raises(ValueError, match="a mask of 1 words for each of 2 rows"):
            executor.give_masks(ticket, masks.copy())
    executor.give_masks(ticket, MASKS)
    with pytest.raises(ValueError, match="has its masks"):
        executor.give_masks(ticket, MASKS)
    executor.wait(plain)
    executor.wait(ticket)
    with pytest.raises(ValueError, match="ticket"):
        executor.give_masks(ticket, MASKS)


def test_tickets_are_redeemed_once(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    ticket = submit(executor, [1], [0])
    executor.wait(ticket)
    with pytest.raises(ValueError, match="ticket"):
        executor.wait(ticket)
    with pytest.raises(ValueError, match="ticket"):
        executor.wait(12345)


def test_errors_of_the_control_thread_surface_in_wait(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    executor.watch(lambda _: 1 / 0)
    ticket = submit(executor, [1], [0])
    with pytest.raises(RuntimeError, match="division by zero"):
        executor.wait(ticket)
    executor.watch(None)
    assert np.array_equal(run(executor, [1], [0])["values"][0], table[1])


def refused(executor: _native.Executor) -> bool:
    try:
        submit(executor, [3], [0])
    except RuntimeError:
        return True
    return False


def test_close(table: np.ndarray) -> None:
    pool = _native.Pool(2)
    executor = embedding(pool, table)
    entered, gate = threading.Event(), threading.Event()
    executor.watch(lambda _: (entered.set(), gate.wait()))
    running, queued = submit(executor, [1], [0]), submit(executor, [2], [0])
    entered.wait()
    closing = threading.Thread(target=pool.close)
    closing.start()
    assert until(lambda: refused(executor)), "the close has begun"
    gate.set()
    closing.join()
    pool.close()
    assert np.array_equal(executor.wait(running)["values"][0], table[1])
    with pytest.raises(RuntimeError, match="closed"):
        executor.wait(queued)
    with pytest.raises(RuntimeError, match="closed"):
        submit(executor, [1], [0])


def test_an_executor_may_go_before_its_batches_are_done(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    executor.watch(lambda _: None)
    for _ in range(20):
        submit(executor, [1], [0])
    del executor
    assert np.array_equal(run(embedding(pool, table), [2], [0])["values"][0], table[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": i32(1, VOCAB, 2)}, "token 50"),
        ({"tokens": i32(1, -1, 2)}, "token -1"),
        ({"positions": i32(0, 1, 40)}, "position 40"),
        ({"positions": i32(0, 1, 3)}, "consecutive"),
        ({"positions": i32(0, 1)}, "differ in length"),
        ({"positions": i32(15, 16, 17)}, "beyond the sequence's blocks"),
        ({"block_tables": np.full((1, 1), 4, np.int32)}, "block 4"),
        ({"block_tables": np.zeros((2, 1), np.int32)}, "a row for each sequence"),
        ({"sequence_starts": i32(0, 2)}, "sequence_starts"),
        ({"sequence_starts": i32(0, 3, 3)}, "needs a row|block_tables"),
        ({"logit_rows": i32(3)}, "logit row 3"),
        ({"logit_rows": i32(1, 1)}, "ascend"),
        ({"logit_rows": i32(2, 0)}, "ascend"),
        ({"sampling": sampling(2)}, "one value a logit row"),
        ({"tokens": i32(*range(17)), "positions": i32(*range(17)), "sequence_starts": i32(0, 17)}, "exceed"),
        ({"tokens": i32(), "positions": i32(), "sequence_starts": i32(0, 0)}, "no rows"),
    ],
    ids=str,
)
def test_refuses_batches(changes: dict, message: str, table: np.ndarray, pool: _native.Pool) -> None:
    p = program(4)
    p.embed(0, table)
    cos = np.ones((40, 4), np.float32)
    p.attention(0, 0, 0, 1, _native.KVCache(1, 4, 16, 1, WIDTH, "bf16"), 0, 1, 1.0, rope=(cos, cos))
    p.select_rows(1, 2)
    executor = _native.Executor(pool, [p], 2, WIDTH)
    run(executor, [1, 2, 3], [2])
    with pytest.raises(ValueError, match=message):
        submit(executor, [1, 2, 3], [2], **changes)


@pytest.mark.parametrize(
    ("second_layer", "second_table"), [(1, [[3, 1], [3, 0]]), (0, [[3, 4], [3, 5]])], ids=["own", "shared"]
)
def test_each_attention_goes_by_its_own_block_table(
    second_layer: int, second_table: list[list[int]], table: np.ndarray, pool: _native.Pool
) -> None:
    """The second sequence reads what the first writes in the same batch.  Layers with other tables and blocks
    can share a place in a cache."""

    def executor(which: int, layer: int) -> _native.Executor:
        p = _native.Program([WIDTH] * 4, 32, round_bf16=False)
        cache = _native.KVCache(2, 6, 16, 1, WIDTH, "fp32")
        p.embed(0, table)
        p.attention(0, 0, 0, 1, cache, 0, 1, 1.0)
        p.attention(1, 1, 1, 2, cache, layer, 1, 1.0, window=9, table=which)
        p.select_rows(2, 3)
        return _native.Executor(pool, [p], 3, WIDTH)

    first_table = np.array([[0, 1], [0, 2]], np.int32)
    both = np.concatenate([first_table, np.array(second_table, np.int32)])
    tokens, rows = [*range(20), 30, 31], [19, 21]
    batch = {"positions": i32(*range(20), 16, 17), "sequence_starts": i32(0, 20, 22)}
    wanted = run(executor(0, 1), tokens, rows, block_tables=first_table, **batch)["values"]
    apart = executor(1, second_layer)
    assert np.array_equal(run(apart, tokens, rows, block_tables=both, **batch)["values"], wanted)
    with pytest.raises(ValueError, match="a row for each sequence, 2 times"):
        submit(apart, tokens, rows, block_tables=first_table, **batch)


def test_refuses_other_dtypes(table: np.ndarray, pool: _native.Pool) -> None:
    executor = embedding(pool, table)
    with pytest.raises(TypeError):
        submit(executor, [1], [0], tokens=np.array([1]))
    wrong = dataclasses.replace(sampling(1), temperature=np.zeros(1))
    with pytest.raises(TypeError, match="temperature"):
        submit(executor, [1], [0], sampling=wrong)


@pytest.mark.parametrize(
    "build",
    [
        lambda p, t: p.embed(3, t),
        lambda p, t: p.embed(0, t[:, :5].copy()),
        lambda p, t: p.embed(0, t.astype(np.float64)),
        lambda p, t: p.rms_norm(0, 1, np.ones(7, np.float32), 1e-5),
        lambda p, t: p.rope(0, 1, 8, np.ones((4, 5), np.float32), np.ones((4, 5), np.float32)),
        lambda p, t: p.rope(0, 1, 8, np.ones((4, 4), np.float32), np.ones((5, 4), np.float32)),
        lambda p, t: p.attention(0, 1, 1, 2, _native.KVCache(1, 4, 16, 1, 8, "bf16"), 0, 3, 1.0),
        lambda p, t: p.attention(0, 1, 1, 2, _native.KVCache(1, 4, 16, 1, WIDTH, "bf16"), 1, 1, 1.0),
        lambda p, t: p.all_gather(0, 1, [0, 1], [3, 4]),
        lambda p, t: p.send(0, 1, rows="all"),
        lambda p, t: (p.select_rows(0, 1), p.add(0, 1, 2)),
    ],
)
def test_refuses_ops(build: Callable, table: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        build(program(), table)


def test_a_program_is_sealed_by_its_executor(table: np.ndarray, pool: _native.Pool) -> None:
    p = program()
    p.embed(0, table)
    _native.Executor(pool, [p], 0, WIDTH)
    with pytest.raises(ValueError, match="belongs to an Executor"):
        p.add(0, 0, 1)


LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: _native.Matrix("fp32", np.zeros(8192, np.uint8), None, LARGEST, LARGEST),
        lambda: _native.Matrix("int8", np.zeros(2048, np.uint8), np.ones(32, np.float32), 32, LARGEST),
        lambda: _native.KVCache(1, 2**30, 2**30, 1, 512, "fp32"),  # 2^72 bytes
        lambda: _native.KVCache(LARGEST, LARGEST, 16, LARGEST, 64, "bf16"),
        lambda: _native.Program([2**31 - 16, 2**31 - 16, 32], 2**30, round_bf16=False),  # 2^64 bytes
        lambda: _native.Program([1] * 4, LARGEST, round_bf16=False).embed(0, np.zeros((2, 2), np.float32)),
    ],
    ids=["matrix", "scaled", "cache", "caches", "program", "rows"],
)
def test_sizes_that_overflow_are_refused(build: Callable[[], object]) -> None:
    """Modulo 2^64 some of them are small, and writes would go to any address."""
    with pytest.raises((ValueError, MemoryError)):
        build()


def test_widths_that_overflow_are_refused() -> None:
    cache = _native.KVCache(1, 2, 16, 2, 64, "bf16")
    attending = _native.Program([384, 128, 128, 384], ROWS, round_bf16=False)
    with pytest.raises(ValueError, match="heads"):
        attending.attention(0, 1, 2, 3, cache, 0, 2**26 + 6, 0.1)  # times 64 that is 2^32 + 384
    with pytest.raises(ValueError, match="wide"):
        program().all_gather(0, 1, [0, 1, 2], [LARGEST, LARGEST, WIDTH + 2])  # 2^32 + WIDTH
