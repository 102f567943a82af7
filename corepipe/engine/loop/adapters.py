"""The LoRA adapters of an engine: read beside the loop, placed into slots of every replica, and dropped when
the last request with them has ended.

An adapter is known by the hash of its content: a request that was given one keeps it, whatever its name
stands for later, and names with the same content share a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from corepipe.engine.lora import AdapterReport, LoadAdapter
from corepipe.errors import UserError, why
from corepipe.models.adapters.adapter import Adapter
from corepipe.neuron.step import AdapterKind
from corepipe.scheduler.request import Request


class AdapterTable(Protocol):
    """The adapters of a replica's executor, by slot."""

    def load(self, slot: int, adapter: Adapter) -> None:
        """Puts an adapter into a free slot."""

    def unload(self, slot: int) -> None:
        """Frees a slot that no batch in flight reads."""


@dataclass(frozen=True, slots=True)
class AdapterParts:
    """The parts of a deployment that serve adapters: a table of each replica, and `read`, which reads a
    directory and raises UserError.

    most: the adapters that may be loaded at once.  slots: the places of a table; there are more, for adapters
    that only requests under way still have.  kinds: what decides the time of the adapter in each slot.
    """

    read: Callable[[Path], Adapter]
    tables: Sequence[AdapterTable]
    most: int
    slots: int
    kinds: dict[int, AdapterKind] = field(default_factory=dict)


@dataclass(slots=True)
class _Placed:
    slot: int
    report: AdapterReport
    retired: bool = False


class EngineAdapters:
    """The adapters that are loaded.  `on_read` is called by another thread when there is something to
    `take`."""

    def __init__(self, parts: AdapterParts, on_read: Callable[[], None]) -> None:
        self._parts = parts
        self._on_read = on_read
        self._placed: dict[str, _Placed] = {}
        self._free = list(reversed(range(parts.slots)))
        self._reader: ThreadPoolExecutor | None = None  # until the first adapter
        self._reading: list[tuple[LoadAdapter, Future[Adapter]]] = []

    def slot(self, digest: str) -> int:
        """Returns the slot of an adapter.  Raises ValueError where it is not loaded."""
        placed = self._placed.get(digest)
        if placed is None:
            raise ValueError("the LoRA adapter is not loaded any more")
        return placed.slot

    @property
    def retired(self) -> bool:
        """True where an adapter is loaded for requests under way alone."""
        return any(placed.retired for placed in self._placed.values())

    def load(self, command: LoadAdapter) -> AdapterReport:
        """Loads an adapter now."""
        try:
            adapter = self._parts.read(Path(command.path))
        except (UserError, OSError) as error:
            return _failed(command, error)
        return self._place(command, adapter)

    def start(self, command: LoadAdapter) -> None:
        """Begins to load an adapter; its report comes with `take`."""
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "adapters")
        future = self._reader.submit(self._parts.read, Path(command.path))
        self._reading.append((command, future))
        future.add_done_callback(lambda _: self._on_read())

    def take(self) -> list[AdapterReport]:
        """Returns the reports on adapters that have been read since the last call; those are loaded now."""
        reports = []
        while self._reading and self._reading[0][1].done():
            command, future = self._reading.pop(0)
            error = future.exception()
            reports.append(
                self._place(command, future.result()) if error is None else _failed(command, error)
            )
        return reports

    def retire(self, digest: str) -> None:
        """Lets an adapter go as soon as no request has it; one that is not loaded is ignored."""
        if digest in self._placed:
            self._placed[digest].retired = True

    def drop_unused(self, used: Collection[str]) -> None:
        """Frees the slots of the adapters that were let go, but for those in `used`, by their hashes."""
        for digest, placed in list(self._placed.items()):
            if placed.retired and digest not in used:
                for table in self._parts.tables:
                    table.unload(placed.slot)
                self._free.append(placed.slot)
                del self._parts.kinds[placed.slot]
                del self._placed[digest]

    def close(self) -> None:
        """Ends the thread that reads."""
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)

    def _place(self, command: LoadAdapter, adapter: Adapter) -> AdapterReport:
        digest = adapter.digest
        report = AdapterReport(command.name, command.path, digest, adapter.rank, adapter.nbytes)
        if command.digest not in ("", digest):
            return _failed(command, UserError(f"{command.path}: its files have changed since it was loaded"))
        placed = self._placed.get(digest)
        if placed is not None:
            placed.retired = False
            return report  # nothing is replaced by its own content
        replaced = command.replaces in self._placed
        if self._live() - replaced >= self._parts.most or not self._free:
            message = f"{self._live()} adapters are loaded: --max-loras {self._parts.most} is reached"
            return AdapterReport(command.name, command.path, error=message, retry=True)
        slot = self._free.pop()
        for table in self._parts.tables:
            table.load(slot, adapter)
        self._placed[digest] = _Placed(slot, report)
        self._parts.kinds[slot] = adapter.kind
        self.retire(command.replaces)
        return report

    def _live(self) -> int:
        return sum(not placed.retired for placed in self._placed.values())


def adapters_of(requests: Iterable[Request]) -> set[str]:
    """Returns the hashes of the adapters that some requests have."""
    return {request.adapter_key for request in requests}


def _failed(command: LoadAdapter, error: BaseException) -> AdapterReport:
    words = why(error) if isinstance(error, OSError) else str(error)
    return AdapterReport(command.name, command.path, command.digest, error=words)
