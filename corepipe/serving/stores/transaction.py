"""A transaction: all that can be read and written in the store, at once or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from corepipe.serving.stores.errors import StoreFullError
from corepipe.serving.stores.table import Page, Row, T, Table

ROW_BYTES = 512
"""Bytes that a row is charged beside its data: its columns and its entries in the indexes."""
ENTRY_BYTES = 32
"""Bytes that an entry is charged beside its data."""

_ALL = 2**62
"""A number above those of all rows."""

_GET = """
SELECT id, tenant, created, expires, ended, data FROM objects
WHERE kind = ? AND tenant = ? AND id = ? AND (expires > ? OR NOT ended)
"""
_FIND = """
SELECT number, length(data), file_bytes FROM objects
WHERE kind = ? AND tenant = ? AND id = ? AND (expires > ? OR NOT ended)
"""
_NEWEST_FIRST = """
SELECT id, tenant, created, expires, ended, data FROM objects
WHERE kind = ? AND tenant = ? AND (expires > ? OR NOT ended) AND number < ? ORDER BY number DESC
"""
_OLDEST_FIRST = """
SELECT id, tenant, created, expires, ended, data FROM objects
WHERE kind = ? AND tenant = ? AND (expires > ? OR NOT ended) AND number > ? ORDER BY number
"""
_UNENDED = """
SELECT id, tenant, created, expires, ended, data FROM objects WHERE kind = ? AND NOT ended ORDER BY number
"""
_INSERT = """
INSERT INTO objects (kind, id, tenant, created, expires, ended, on_disk, bytes, file_bytes, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_UPDATE = """
UPDATE objects SET data = ?, bytes = bytes + ?, file_bytes = ?, ended = coalesce(?, ended),
    expires = min(expires, created + ?)
WHERE number = ?
"""
_ENTRIES = "SELECT position, data FROM entries WHERE of = ? AND position > ? ORDER BY position LIMIT ?"


class Transaction:
    """The store within one transaction.  now: seconds since 1970.  most_bytes, most_seconds: the limits of a
    tenant's rows together, and of a row's age.

    Methods that name a row by `id` do nothing for one of another tenant.  `gone` are the ids of removed rows
    that have files.
    """

    def __init__(self, connection: sqlite3.Connection, now: int, most_bytes: int, most_seconds: int) -> None:
        self._run = connection.execute
        self._many = connection.executemany
        self.now = now
        self._most_bytes = most_bytes
        self._most_seconds = most_seconds
        self.gone: list[str] = []

    def insert(
        self,
        table: Table[T],
        tenant: str,
        id: str,  # noqa: A002 -- as the API calls it
        value: T,
        *,
        ended: bool = True,
        seconds: int | None = None,
        file_bytes: int = 0,
    ) -> Row[T]:
        """Adds a row.  seconds: its time, where that is less than the store's.  file_bytes: the size of its
        file.  Raises StoreFullError if its tenant has no room even without all that has ended."""
        data = table.encoded(value)
        self._make_room(tenant, len(data) + file_bytes + ROW_BYTES)
        expires = self.now + self._seconds(seconds)
        size = len(data) + file_bytes + ROW_BYTES
        place = (table.name, id, tenant, self.now, expires, ended, table.on_disk)
        self._run(_INSERT, (*place, size, file_bytes, data))
        return Row(id, tenant, self.now, expires, ended, value)

    def get(self, table: Table[T], tenant: str, id: str) -> Row[T] | None:  # noqa: A002
        """Returns a row, or None."""
        found = self._run(_GET, (table.name, tenant, id, self.now)).fetchone()
        return None if found is None else _row(table, found)

    def update(
        self,
        table: Table[T],
        tenant: str,
        id: str,  # noqa: A002
        value: T,
        *,
        ended: bool | None = None,
        seconds: int | None = None,
        file_bytes: int | None = None,
    ) -> bool:
        """Replaces a row's value, and the rest where it is given; `seconds` count from its creation.

        Returns False if there is no such row.  Raises StoreFullError as `insert`.
        """
        found = self._find(table, tenant, id)
        if found is None:
            return False
        number, old, of_file = found
        data, now_of_file = table.encoded(value), of_file if file_bytes is None else file_bytes
        more = len(data) - old + now_of_file - of_file
        self._make_room(tenant, more, number)
        self._run(_UPDATE, (data, more, now_of_file, ended, self._seconds(seconds), number))
        return True

    def hold(self, table: Table[T], tenant: str, id: str, *, ended: bool) -> bool:  # noqa: A002
        """Sets whether a row may be removed to make room.  Returns False if there is no such row."""
        found = self._find(table, tenant, id)
        if found is None:
            return False
        self._run("UPDATE objects SET ended = ? WHERE number = ?", (ended, found[0]))
        return True

    def delete(self, table: Table[T], tenant: str, id: str) -> bool:  # noqa: A002
        """Removes a row and its entries.  Returns False if there is no such row."""
        found = self._find(table, tenant, id)
        return found is not None and self._remove([found[:1]]) > 0

    def _find(self, table: Table[Any], tenant: str, name: str) -> tuple[int, int, int] | None:
        """Returns the number of a row, and the bytes of its data and of its file."""
        found: tuple[int, int, int] | None
        found = self._run(_FIND, (table.name, tenant, name, self.now)).fetchone()
        return found

    def page(
        self,
        table: Table[T],
        tenant: str,
        *,
        after: str | None = None,
        limit: int = 20,
        descending: bool = True,
        where: Callable[[T], bool] = lambda _: True,
    ) -> Page[T]:
        """Lists rows in the order in which they were inserted, those after the row `after`.

        where: tells of a value whether its row is listed.  Raises LookupError if there is no row `after`.
        """
        rows: list[Row[T]] = []
        for found in self._listed(table, tenant, after, descending=descending):
            row = _row(table, found)
            if where(row.value):
                if len(rows) == limit:
                    return Page(rows, more=True)
                rows.append(row)
        return Page(rows, more=False)

    def _listed(
        self, table: Table[Any], tenant: str, after: str | None, *, descending: bool
    ) -> Iterator[Any]:
        start = _ALL if descending else 0
        if after is not None:
            found = self._find(table, tenant, after)
            if found is None:
                raise LookupError(after)
            start = found[0]
        order = _NEWEST_FIRST if descending else _OLDEST_FIRST
        return iter(self._run(order, (table.name, tenant, self.now, start)))

    def unended(self, table: Table[T]) -> list[Row[T]]:
        """Returns the rows of all tenants that have not ended, the oldest first."""
        return [_row(table, one) for one in self._run(_UNENDED, (table.name,))]

    def append(self, table: Table[T], tenant: str, id: str, entries: Sequence[bytes]) -> bool:  # noqa: A002
        """Appends entries to those of a row.  Returns False if there is no such row.

        Raises StoreFullError as `insert`.
        """
        found = self._find(table, tenant, id)
        if found is None:
            return False
        number = found[0]
        more = sum(map(len, entries)) + ENTRY_BYTES * len(entries)
        self._make_room(tenant, more, number)
        last = self._run("SELECT max(position) FROM entries WHERE of = ?", (number,)).fetchone()[0]
        rows = ((number, at, data) for at, data in enumerate(entries, 0 if last is None else last + 1))
        self._many("INSERT INTO entries (of, position, data) VALUES (?, ?, ?)", rows)
        self._run("UPDATE objects SET bytes = bytes + ? WHERE number = ?", (more, number))
        return True

    def entries(
        self,
        table: Table[T],
        tenant: str,
        id: str,  # noqa: A002
        after: int = -1,
        limit: int = 1000,
    ) -> list[tuple[int, bytes]]:
        """Returns a row's entries after position `after`, with their positions, which begin at 0."""
        found = self._find(table, tenant, id)
        return [] if found is None else self._run(_ENTRIES, (found[0], after, limit)).fetchall()

    def _seconds(self, wanted: int | None) -> int:
        return min(self._most_seconds, self._most_seconds if wanted is None else wanted)

    def used(self, tenant: str) -> int:
        """Returns the bytes that all rows of a tenant take."""
        found = self._run("SELECT bytes FROM usage WHERE tenant = ?", (tenant,)).fetchone()
        return 0 if found is None else found[0]

    def room(self, tenant: str) -> int:
        """Returns the bytes that a tenant could still store if all that has ended were removed."""
        held = self._run(
            "SELECT coalesce(sum(bytes), 0) FROM objects WHERE tenant = ? AND NOT ended", (tenant,)
        ).fetchone()
        return max(0, self._most_bytes - int(held[0]))

    def remove_expired(self) -> None:
        """Removes the rows whose time is over, except those that have not ended."""
        self._remove(self._run("SELECT number FROM objects WHERE expires <= ? AND ended", (self.now,)))

    def _make_room(self, tenant: str, more: int, keep: int = 0) -> None:
        """Removes a tenant's oldest ended rows, but for number `keep`, until `more` bytes have room.

        Raises StoreFullError, and removes nothing, where that is not enough.
        """
        over = self.used(tenant) + more - self._most_bytes
        if more <= 0 or over <= 0:
            return
        oldest = self._run(
            "SELECT number, bytes FROM objects WHERE tenant = ? AND ended AND number != ? ORDER BY number",
            (tenant, keep),
        )
        numbers = []
        for number, size in oldest:
            if over <= 0:
                break
            numbers.append((number,))
            over -= size
        if over > 0:
            raise StoreFullError(
                f"There is no room: what is stored may take {self._most_bytes} bytes together "
                "(--store-bytes), and what is in progress is not removed."
            )
        self._remove(numbers)

    def _remove(self, numbers: Iterator[Any] | Sequence[Any]) -> int:
        """Removes rows by their numbers; returns how many."""
        removed = 0
        for (number,) in list(numbers):
            found = self._run("SELECT id FROM objects WHERE number = ? AND on_disk", (number,)).fetchone()
            self.gone += found or ()
            removed += self._run("DELETE FROM objects WHERE number = ?", (number,)).rowcount
        return removed


def _row(table: Table[T], found: Any) -> Row[T]:  # noqa: ANN401 -- a row of sqlite3
    name, tenant, created, expires, ended, data = found
    return Row(name, tenant, created, expires, bool(ended), table.decoded(data))
