"""The store of a server: what it keeps, for whom, for how long, and through which mishaps."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig
from corepipe.serving.stores.errors import StoreError, StoreFullError
from corepipe.serving.stores.store import Store
from corepipe.serving.stores.table import Table
from corepipe.serving.stores.transaction import ENTRY_BYTES, ROW_BYTES, Transaction

LEAST = 1024 * 1024


class Thing(msgspec.Struct, frozen=True):
    text: str
    payload: bytes = b""


class NewerThing(Thing, frozen=True):
    colour: str = "none"


THINGS = Table("things", Thing)
FILES = Table("files", Thing, on_disk=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def store(folder: Path | None, clock: Clock | None = None, **limits: int) -> AsyncIterator[Store]:
    made = Store(ServerConfig(store_dir=folder, **limits), clock or Clock())
    try:
        yield made
    finally:
        made.close()


async def do(kept_in: Store, method: str, *arguments: object, **named: object) -> Any:
    """A transaction of one method."""
    return await kept_in.run(lambda kept: getattr(kept, method)(*arguments, **named))


async def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    def written(kept: Transaction) -> None:
        kept.insert(THINGS, "a", "one", Thing("1", b"\x00\xff"), ended=False)
        kept.append(THINGS, "a", "one", [b"x", b"y"])
        kept.append(THINGS, "a", "one", [b"z"])

    async with store(tmp_path / "made" / "here") as first:
        await first.run(written)
    async with store(tmp_path / "made" / "here") as second:
        row = await do(second, "get", Table("things", NewerThing), "a", "one")
        assert row is not None
        assert row.value == NewerThing("1", b"\x00\xff", "none")
        assert not row.ended
        found = await do(second, "entries", THINGS, "a", "one", after=0)
        assert found == [(1, b"y"), (2, b"z")]
        assert [one.id for one in await do(second, "unended", THINGS)] == ["one"]


async def test_random_walks_equal_a_dictionary(tmp_path: Path) -> None:
    """All methods, against the plainest model of them; two tenants use the same ids."""
    draw, model = random.Random(7), {"a": {}, "b": {}}
    async with store(tmp_path) as kept_in:
        for step in range(400):
            tenant, name = draw.choice("ab"), f"id{draw.randrange(6)}"
            name, mine = f"{name}-{tenant}", model[tenant]
            text, what = f"step {step}", draw.choice(["insert", "update", "delete", "append", "page"])
            if what == "insert" and name not in mine:
                await do(kept_in, "insert", THINGS, tenant, name, Thing(text))
                mine[name] = (text, [])
            elif what == "update":
                done = await do(kept_in, "update", THINGS, tenant, name, Thing(text))
                assert done == (name in mine)
                if done:
                    mine[name] = (text, mine[name][1])
            elif what == "delete":
                done = await do(kept_in, "delete", THINGS, tenant, name)
                assert done == (mine.pop(name, None) is not None)
            elif what == "append":
                done = await do(kept_in, "append", THINGS, tenant, name, [text.encode()])
                assert done == (name in mine)
                if done:
                    mine[name][1].append(text.encode())
            other = "b" if tenant == "a" else "a"
            assert await do(kept_in, "get", THINGS, other, name) is None
            await _equal(kept_in, tenant, mine, draw)
        await _charged(kept_in, model)


async def _equal(kept_in: Store, tenant: str, mine: dict, draw: random.Random) -> None:
    names, descending, limit = list(mine), draw.random() < 0.5, draw.randrange(1, 4)
    order = names[::-1] if descending else names
    seen, after, more = [], None, True
    while more:
        page = await do(kept_in, "page", THINGS, tenant, after=after, limit=limit, descending=descending)
        seen += [(row.id, row.value.text) for row in page.rows]
        assert len(page.rows) <= limit
        after, more = seen[-1][0] if seen else None, page.more
    assert seen == [(name, mine[name][0]) for name in order]
    for name in names:
        found = await do(kept_in, "entries", THINGS, tenant, name)
        assert found == list(enumerate(mine[name][1]))


async def _charged(kept_in: Store, model: dict) -> None:
    for tenant, mine in model.items():
        size = sum(
            ROW_BYTES + len(THINGS.encoded(Thing(text))) + sum(ENTRY_BYTES + len(one) for one in entries)
            for text, entries in mine.values()
        )
        assert await do(kept_in, "used", tenant) == size


async def test_a_transaction_that_raises_writes_nothing(tmp_path: Path) -> None:
    def fails(kept: Transaction) -> None:
        kept.insert(THINGS, "a", "one", Thing("1"))
        raise ZeroDivisionError

    async with store(tmp_path) as kept_in:
        with pytest.raises(ZeroDivisionError):
            await kept_in.run(fails)
        assert await do(kept_in, "get", THINGS, "a", "one") is None
        assert await do(kept_in, "used", "a") == 0
        with pytest.raises(LookupError):
            await do(kept_in, "page", THINGS, "a", after="one")


async def test_the_oldest_that_has_ended_makes_room_and_no_other_key_does(tmp_path: Path) -> None:
    third = Thing("", bytes(LEAST // 3))
    async with store(tmp_path, store_bytes=LEAST) as kept_in:

        async def add(tenant: str, name: str, *, ended: bool = True) -> None:
            await do(kept_in, "insert", THINGS, tenant, name, third, ended=ended)

        async def names(tenant: str) -> list[str]:
            page = await do(kept_in, "page", THINGS, tenant, descending=False)
            return [row.id for row in page.rows]

        await add("b", "b0")
        await add("a", "a0", ended=False)
        await add("a", "a1")
        await add("a", "a2")
        assert await names("a") == ["a0", "a2"]
        await add("a", "a3", ended=False)
        assert await names("a") == ["a0", "a3"]
        assert LEAST // 4 < await do(kept_in, "room", "a") < LEAST // 3
        with pytest.raises(StoreFullError, match="--store-bytes"):
            await add("a", "a4")
        with pytest.raises(StoreFullError):
            await do(kept_in, "append", THINGS, "a", "a0", [bytes(LEAST // 2)])
        await do(kept_in, "hold", THINGS, "a", "a0", ended=True)
        await add("a", "a5")
        assert await names("a") == ["a3", "a5"]
        assert await names("b") == ["b0"]


async def test_time_removes_what_has_ended_and_its_file(tmp_path: Path) -> None:
    clock = Clock()
    async with store(tmp_path, clock, store_seconds=1000) as kept_in:
        folder = await kept_in.folder()
        for name, ended, seconds in (("short", True, 100), ("long", True, 5000), ("busy", False, 100)):
            folder.file(name).write_bytes(b"abc")
            await do(kept_in, "insert", FILES, "a", name, Thing(name), ended=ended, seconds=seconds)
        for seconds, left in ((99, {"short", "long", "busy"}), (1, {"long", "busy"}), (900, {"busy"})):
            clock.now += seconds
            page = await do(kept_in, "page", FILES, "a")
            assert {row.id for row in page.rows} == left
        clock.now += 60  # it tidies up once a minute
        await kept_in.run(lambda kept: None)
        assert {one.name for one in folder.files.iterdir()} == {"busy"}
        await do(kept_in, "delete", FILES, "a", "busy")
        assert not list(folder.files.iterdir())


async def test_a_start_removes_files_without_a_row(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        folder = await first.folder()
        for name in ("kept", "torn"):
            folder.file(name).write_bytes(b"abc")
        await do(first, "insert", FILES, "a", "kept", Thing(""))
    async with store(tmp_path) as second:
        second.open()
        assert [one.name for one in (tmp_path / "files").iterdir()] == ["kept"]


async def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    async with store(tmp_path / "s") as kept_in:
        await do(kept_in, "insert", THINGS, "a", "one", Thing("1"))
        modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "s").rglob("*")}
        assert modes.pop("files") == stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
        assert set(modes) >= {"store.sqlite", "store.sqlite-wal", "lock"}
        assert set(modes.values()) == {0o600}


async def test_a_temporary_store_is_opened_when_it_is_used_and_removed_at_the_end() -> None:
    async with store(None) as unused:
        assert unused._database is None
    async with store(None) as kept_in:
        folder = await kept_in.folder()
        await do(kept_in, "insert", THINGS, "a", "one", Thing("1"))
        assert (folder.path / "store.sqlite").exists()
    assert not folder.path.exists()
    with pytest.raises(StoreError):
        await kept_in.run(lambda kept: None)


def test_who_stores_nothing_imports_nothing() -> None:
    code = "import sys, corepipe.serving.api.app; print('sqlite3' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


async def test_one_server_at_a_time(tmp_path: Path) -> None:
    async with store(tmp_path) as first, store(tmp_path) as second:
        first.open()
        with pytest.raises(UserError, match=r"--store-dir .*another server uses it"):
            second.open()
    async with store(tmp_path) as third:
        third.open()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"no database at all" * 500), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "damaged"),
        (lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 99"), "of version 99, not 1"),
        (lambda path: sqlite3.connect(path).execute("PRAGMA application_id = 5"), "is not a store"),
    ],
)
async def test_a_database_that_cannot_be_read_is_refused_and_left_alone(
    tmp_path: Path, damage: object, said: str
) -> None:
    async with store(tmp_path) as first:
        await do(first, "insert", THINGS, "a", "one", Thing("1", bytes(20_000)))
    path = tmp_path / "store.sqlite"
    damage(path)
    before = path.read_bytes()
    async with store(tmp_path) as second:
        with pytest.raises(UserError, match=f"--store-dir .*{said}"):
            second.open()
    assert path.read_bytes() == before


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with store(tmp_path / "file" / "below") as kept_in:
        with pytest.raises(UserError, match=r"--store-dir .*file/below"):
            kept_in.open()


async def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    async with store(tmp_path) as kept_in:
        await do(kept_in, "insert", THINGS, "a", "one", Thing("1"))
        limited = "PRAGMA max_page_count = 20"  # sqlite says the same where the disk is full
        await kept_in.run(lambda kept: list(kept._run(limited)))
        with pytest.raises(StoreFullError, match="disk"):
            await do(kept_in, "insert", THINGS, "a", "two", Thing("", bytes(100_000)))
        page = await do(kept_in, "page", THINGS, "a")
        assert [row.id for row in page.rows] == ["one"]
        await do(kept_in, "insert", THINGS, "a", "three", Thing("3"))


KILLED = """
import asyncio, sys, itertools
from tests.serving.stores.test_store import *
async def main():
    async with store(Path(sys.argv[1])) as kept_in:
        for number in itertools.count():
            def work(kept):
                kept.insert(THINGS, "a", f"n{number}", Thing(str(number)))
                kept.append(THINGS, "a", f"n{number}", [b"1", b"2", b"3"])
            await kept_in.run(work)
            print(number, flush=True)
asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_a_kill_whole(tmp_path: Path) -> None:
    async def written() -> dict[str, int]:
        async with store(tmp_path) as kept_in:
            page = await do(kept_in, "page", THINGS, "a", limit=10**6, descending=False)
            return {row.id: len(await do(kept_in, "entries", THINGS, "a", row.id)) for row in page.rows}

    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(40)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    acknowledged = {f"n{int(line)}" for line in lines if line.endswith("\n")}
    found = await written()
    assert set(found) >= acknowledged
    assert set(found.values()) == {3}


async def test_a_slow_transaction_does_not_hold_up_the_event_loop(tmp_path: Path) -> None:
    async with store(tmp_path) as kept_in:
        loop, may_end = asyncio.get_running_loop(), asyncio.Event()

        def slow(_: Transaction) -> None:
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()

        running = asyncio.create_task(kept_in.run(slow))
        await asyncio.sleep(0)
        may_end.set()
        await running
