"""Files that clients upload, and those with the results of batches."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Literal

import msgspec

from corepipe.serving.stores.errors import StoreError, disk_failures
from corepipe.serving.stores.store import Store
from corepipe.serving.stores.table import Row, Table

if TYPE_CHECKING:  # imports sqlite
    from corepipe.serving.stores.transaction import Transaction

RESERVED_BYTES = 1024 * 1024
"""Bytes by which the room of a growing file is extended."""


class StoredFile(msgspec.Struct, frozen=True):
    """Facts about a file.  filename: as its client calls it; it names nothing on the disk.  bytes: its size.

    status: "growing" while it is written; nobody sees it then.
    """

    filename: str
    purpose: str
    bytes: int = 0
    status: Literal["growing", "processed"] = "growing"


FILES = Table("files", StoredFile, on_disk=True)


class GrowingFile:
    """A file while it is written.  Its row has room for all of it before it is on the disk, so that no client
    fills the disk with what is not charged to it."""

    def __init__(self, store: Store, row: Row[StoredFile], descriptor: int, size: int) -> None:
        self.row = row
        self.size = size
        self._store = store
        self._file = descriptor
        self._reserved = size
        self._writing = threading.Lock()

    @staticmethod
    async def begin(store: Store, tenant: str, id: str, value: StoredFile) -> GrowingFile:  # noqa: A002
        """Makes an empty file and its row.  Raises StoreError."""
        row = await store.run(lambda kept: kept.insert(FILES, tenant, id, value, ended=False))
        return await GrowingFile.resume(store, row)

    @staticmethod
    async def resume(store: Store, row: Row[StoredFile], size: int = 0) -> GrowingFile:
        """Opens a file whose row is there; cuts what follows its first `size` bytes.  Raises StoreError."""
        path = (await store.folder()).file(row.id)
        with disk_failures():
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.ftruncate(descriptor, size)
            os.lseek(descriptor, size, os.SEEK_SET)
        return GrowingFile(store, row, descriptor, size)

    async def write(self, data: bytes, *, durably: bool = False) -> None:
        """Appends data; durably: it is on the disk when this returns.  Raises StoreError.

        StoreFullError: its tenant has no room for it; then nothing was written.
        """
        await self._reserve(self.size + len(data))
        await asyncio.to_thread(self._append, data, durably=durably)
        self.size += len(data)

    async def finish(self, filename: str, purpose: str, seconds: int | None = None) -> Row[StoredFile]:
        """Returns the row, once all is on the disk and others may see it.  seconds: as for `insert`.

        Raises StoreError."""
        await asyncio.to_thread(self._append, b"", durably=True)
        self.close()
        row, value = self.row, StoredFile(filename, purpose, self.size, "processed")

        def finished(kept: Transaction) -> Row[StoredFile] | None:
            size = self.size
            kept.update(FILES, row.tenant, row.id, value, ended=True, seconds=seconds, file_bytes=size)
            return kept.get(FILES, row.tenant, row.id)

        if (there := await self._store.run(finished)) is None:
            raise StoreError("The file was removed while it was written.")
        return there

    async def drop(self) -> None:
        """Removes the file and its row."""
        self.close()
        row = self.row
        await self._store.run(lambda kept: kept.delete(FILES, row.tenant, row.id))

    def close(self) -> None:
        with self._writing:  # a thread may write for somebody who has been cancelled
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    async def _reserve(self, size: int) -> None:
        if size <= self._reserved:
            return
        room, row = size + RESERVED_BYTES, self.row
        await self._store.run(lambda kept: kept.update(FILES, row.tenant, row.id, row.value, file_bytes=room))
        self._reserved = room

    def _append(self, data: bytes, *, durably: bool) -> None:
        with self._writing, disk_failures():
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            if durably:
                os.fsync(self._file)
