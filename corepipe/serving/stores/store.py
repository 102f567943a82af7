"""The store of a server: opened when it is first used, and used without blocking the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig
from corepipe.serving.stores.errors import StoreError

if TYPE_CHECKING:  # who stores nothing does without sqlite
    from corepipe.serving.stores.database import Database
    from corepipe.serving.stores.folder import Folder
    from corepipe.serving.stores.transaction import Transaction

R = TypeVar("R")


class Store:
    """The things that a server keeps for its clients, within its limits.  clock: seconds since 1970."""

    def __init__(self, server: ServerConfig, clock: Callable[[], float] = time.time) -> None:
        self._path = server.store_dir
        self._limits = (server.store_bytes, server.store_seconds)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "store")
        self._database: Database | None = None
        self._closed = False

    @property
    def lasts(self) -> bool:
        """True if what is kept outlives the server."""
        return self._path is not None

    def open(self) -> None:
        """Opens the store now.  Raises UserError for a directory that cannot be used."""
        self._thread.submit(self._opened).result()

    async def folder(self) -> Folder:
        """Returns the store's directory.  Raises StoreError."""
        return (await self._call(self._opened)).folder

    async def run(self, work: Callable[[Transaction], R]) -> R:
        """Runs `work` in the store's thread; returns what it returns, once all that it wrote is on the disk.

        If it raises, nothing was written.  Raises StoreError."""
        return await self._call(lambda: self._opened().run(work))

    async def _call(self, work: Callable[[], R]) -> R:
        if self._closed:
            raise StoreError("The server is about to end.")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except UserError as error:  # of a temporary directory: others are opened at the start
            raise StoreError(f"The store cannot be opened: {error.message}.") from error

    def _opened(self) -> Database:
        if self._database is None:
            from corepipe.serving.stores.database import Database  # noqa: PLC0415
            from corepipe.serving.stores.folder import Folder  # noqa: PLC0415

            folder = Folder(self._path)
            try:
                self._database = Database(folder, *self._limits, self._clock)
            except BaseException:
                folder.close()
                raise
        return self._database

    def close(self) -> None:
        """Closes the store when all that was begun is done."""
        self._closed = True
        self._thread.submit(self._end).result()
        self._thread.shutdown()

    def _end(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
