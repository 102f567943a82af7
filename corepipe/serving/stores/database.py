"""The database of a store: opened, checked, and used by one thread in transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

from corepipe.serving.stores.errors import StoreError, StoreFullError
from corepipe.serving.stores.folder import Folder, unusable
from corepipe.serving.stores.transaction import Transaction

APPLICATION_ID = 0x636F7265
"""Marks the file as ours, in sqlite's header: "core"."""
VERSION = 1
"""The version of `SCHEMA`; a store of another version is refused."""
CHECKED_BYTES = 64 * 1024 * 1024
"""The size up to which a start checks the whole database."""
TIDY_SECONDS = 60
"""Seconds between two removals of what has expired."""

SCHEMA = """
CREATE TABLE objects (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    on_disk INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    file_bytes INTEGER NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (kind, id)
);
CREATE INDEX by_tenant ON objects (tenant, kind, number);
CREATE INDEX by_age ON objects (tenant, ended, number, bytes);
CREATE INDEX by_expiry ON objects (expires) WHERE ended;
CREATE TABLE entries (
    of INTEGER NOT NULL REFERENCES objects (number) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (of, position)
) WITHOUT ROWID;
CREATE TABLE usage (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER charge AFTER INSERT ON objects BEGIN
    INSERT INTO usage VALUES (NEW.tenant, NEW.bytes)
    ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + NEW.bytes;
END;
CREATE TRIGGER recharge AFTER UPDATE OF bytes ON objects BEGIN
    UPDATE usage SET bytes = bytes + NEW.bytes - OLD.bytes WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER release AFTER DELETE ON objects BEGIN
    UPDATE usage SET bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant;
END;
"""

R = TypeVar("R")


class Database:
    """The database in `folder`.  most_bytes, most_seconds: as in `Transaction`.  One thread uses it.

    Raises UserError for a database that is damaged, or that this version did not make.
    """

    def __init__(
        self, folder: Folder, most_bytes: int, most_seconds: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self._limits = (most_bytes, most_seconds)
        self._clock = clock
        self._tidied = float("-inf")
        path = folder.database
        self._connection = sqlite3.connect(path, isolation_level=None, cached_statements=64)
        try:
            self._prepare()
            found = self._connection.execute("SELECT id FROM objects WHERE on_disk")
            folder.sweep({name for (name,) in found})
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise unusable(folder.path, f"{path.name} is damaged ({error})") from error
        except BaseException:
            self._connection.close()
            raise

    def run(self, work: Callable[[Transaction], R]) -> R:
        """Runs `work` in a transaction, which is on the disk afterwards; not if it raises.

        Raises StoreError where the database or its disk fails.
        """
        with self._failures(), self._transaction() as kept:
            if kept.now - self._tidied >= TIDY_SECONDS:
                kept.remove_expired()
                self._tidied = kept.now
            done = work(kept)
        for name in kept.gone:
            self.folder.remove(name)
        return done

    def close(self) -> None:
        self._connection.close()
        self.folder.close()

    def _prepare(self) -> None:
        run = self._connection.execute
        (mark,), (version,) = (
            run("PRAGMA application_id").fetchone(),
            run("PRAGMA user_version").fetchone(),
        )
        is_new = not run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_new and (mark, version) != (APPLICATION_ID, VERSION):
            reason = f"is of version {version}, not {VERSION}" if mark == APPLICATION_ID else "is not a store"
            raise unusable(self.folder.path, f"store.sqlite {reason}: give another directory")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA foreign_keys = ON")
        run("PRAGMA trusted_schema = OFF")
        if is_new:
            mark = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            self._connection.executescript(f"BEGIN; {SCHEMA} {mark} COMMIT")
        elif self.folder.database.stat().st_size <= CHECKED_BYTES:
            with closing(run("PRAGMA quick_check(1)")) as checked:
                if (said := checked.fetchone()[0]) != "ok":
                    raise sqlite3.DatabaseError(said)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            yield Transaction(self._connection, int(self._clock()), *self._limits)
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raises a StoreError in place of sqlite's errors."""
        try:
            yield
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise StoreFullError("The disk of the store is full.") from error
            raise StoreError(f"The store failed: {error}.") from error
