from __future__ import annotations

import pytest

from corepipe.scheduler.kv_cache import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free, pool.cached, pool.held


def test_the_last_block_of_the_least_recently_held_goes_first():
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    for block, key in zip(blocks, (b"a0", b"a1", b"b0", b"b1"), strict=True):
        pool.publish(block, key)
    pool.release(blocks[:2])
    pool.release(blocks[2:])
    pool.share(blocks[:1])
    pool.release(blocks[:1])
    gone = []
    for _ in range(4):
        pool.allocate(1)
        gone += [key for key in (b"a0", b"a1", b"b0", b"b1") if pool.find(key) is None and key not in gone]
    assert gone == [b"a1", b"b1", b"b0", b"a0"]


def test_of_two_blocks_with_a_key_the_first_is_kept():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, b"key")
    pool.publish(second, b"key")
    assert pool.find(b"key") == first
    pool.release([first, second])
    assert counts(pool) == (1, 1, 0)


def test_check_compares_references_with_tables():
    pool = BlockPool(3)
    one, two = pool.allocate(2)
    pool.share([one])
    pool.check([[one, two], [one]])
    with pytest.raises(RuntimeError, match="reference counts"):
        pool.check([[one, two]])
    with pytest.raises(RuntimeError, match="reference counts"):
        pool.check([[one, two], [two]])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda pool: pool._free.append(0), "0 held|!= 3|1 held"),
        (lambda pool: pool._free.pop(), "!= 3"),
        (lambda pool: pool._free.__setitem__(0, pool._free[1]), "two places"),
        (lambda pool: pool._key_of.update({0: b"key"}), "one to one"),
        (lambda pool: pool.publish(pool._free[0], b"key"), "has no key"),
    ],
)
def test_check_finds_harm(harm, message):
    pool = BlockPool(3)
    tables = [pool.allocate(1)]
    pool.check(tables)
    harm(pool)
    with pytest.raises(RuntimeError, match=message):
        pool.check(tables)


def test_a_limit_on_cached_blocks_bounds_the_blocks_that_are_ever_used():
    pool = BlockPool(10, max_cached=2)
    used = set()
    for turn in range(6):
        blocks = pool.allocate(3)
        used.update(blocks)
        for i, block in enumerate(blocks):
            pool.publish(block, f"{turn}.{i}".encode())
        pool.release(blocks)
        assert counts(pool) == (8, 2, 0)
        pool.check([])
    assert pool.find(b"5.0") is not None
    assert pool.find(b"4.0") is None
    assert len(used) <= 3 + 2
