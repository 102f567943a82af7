"""The LoRA adapters of an engine, as its server knows them: which it has, and which another one must load."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable

from corepipe.engine.lora import AdapterReport, LoadAdapter, UnloadAdapter
from corepipe.engine.messages import Command

LOST = "the engine was lost while it loaded the adapter; try again"


class AdapterLoads:
    """Loads adapters into the engine that `send` reaches, and unloads them.

    An engine keeps an adapter that was unloaded until the last request with it has ended, and so do its
    successors: `again` has what they must load.
    """

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._wanted: dict[str, LoadAdapter] = {}
        self._retired: dict[str, LoadAdapter] = {}
        self._pending: deque[asyncio.Future[AdapterReport]] = deque()

    async def load(self, name: str, path: str, replaces: str = "") -> AdapterReport:
        """Loads the adapter in a directory, in the place of another one if need be.  The report says why
        where that fails."""
        future: asyncio.Future[AdapterReport] = asyncio.get_running_loop().create_future()
        self._pending.append(future)
        self._send(LoadAdapter(name, path, replaces=replaces))
        report = await future
        self.note([report])
        if not report.error and replaces not in ("", report.digest):
            self._retire(replaces)
        return report

    def unload(self, digest: str) -> None:
        """Drops an adapter; requests under way keep it until they end."""
        self._retire(digest)
        self._send(UnloadAdapter(digest))

    def note(self, reports: Iterable[AdapterReport]) -> None:
        """Notes which adapters the engine has."""
        for report in reports:
            if not report.error:
                self._retired.pop(report.digest, None)
                self._wanted[report.digest] = LoadAdapter(report.name, report.path, report.digest)

    def take(self, reports: Iterable[AdapterReport]) -> None:
        """Takes the engine's answers, which come in the order of the loads."""
        for report in reports:
            future = self._pending.popleft()
            if not future.done():  # its request may have been cancelled
                future.set_result(report)

    def lose_engine(self) -> None:
        """Ends the loads under way."""
        self.take([AdapterReport("", "", error=LOST, retry=True) for _ in self._pending.copy()])

    def again(self, used: Collection[str]) -> list[LoadAdapter]:
        """Returns what another engine must load: also what was unloaded, if it is in `used`."""
        self._retired = {digest: one for digest, one in self._retired.items() if digest in used}
        return [*self._wanted.values(), *self._retired.values()]

    def replaced(self, reports: Iterable[AdapterReport]) -> None:
        """Notes which adapters another engine has loaded; it is to drop those that were unloaded before."""
        has = {one.digest for one in reports if not one.error}
        self._wanted = {digest: one for digest, one in self._wanted.items() if digest in has}
        for digest in self._retired:
            self._send(UnloadAdapter(digest))

    def _retire(self, digest: str) -> None:
        if digest in self._wanted:
            self._retired[digest] = self._wanted.pop(digest)
