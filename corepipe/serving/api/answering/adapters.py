"""The LoRA adapters of one model: their names for clients, which are loaded and unloaded while it serves.

A name stands for the content that it had when it was loaded: requests under way keep that, whatever happens
to the name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corepipe.engine.config import EngineConfig
from corepipe.engine.lora import AdapterRef, AdapterReport, is_adapter_name
from corepipe.errors import UserError, shown, why
from corepipe.serving.api.http.errors import ApiError, echo, invalid, overloaded, unavailable

if TYPE_CHECKING:  # the client's module loads the engine's
    from corepipe.serving.supervision.adapters import AdapterLoads
    from corepipe.serving.supervision.client import EngineClient

CONFIG = "adapter_config.json"
"""The file that makes a directory an adapter."""
NOT_SERVED = "This model is served without LoRA adapters: start the server with --enable-lora."


@dataclass(slots=True)
class ServedAdapter:
    """An adapter under its name.  on_demand: a request for its name loaded it; used: when it was last asked
    for, by `monotonic`."""

    ref: AdapterRef
    path: str
    rank: int
    bytes: int
    created: int
    on_demand: bool = False
    used: float = 0.0


class ServedAdapters:
    """The adapters of a model.

    loads: those of its engine; client: knows which adapters open requests have.
    """

    def __init__(self, engine: EngineConfig, loads: AdapterLoads, client: EngineClient) -> None:
        self._loads = loads
        self._client = client
        self._most = engine.lora_slots
        self._dir = engine.lora_dir
        self._served: dict[str, ServedAdapter] = {}
        self._first = True  # no engine has loaded yet
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, engine: EngineConfig, client: EngineClient) -> ServedAdapters | None:
        """Returns the adapters of a model; None where it is served without.

        Raises UserError where there is no such directory of adapters.
        """
        if engine.lora_dir is not None and not engine.lora_dir.is_dir():
            raise UserError(f"--lora-dir {engine.lora_dir}: no such directory", "lora_dir")
        loads = client.adapters if engine.lora_slots else None
        return None if loads is None else cls(engine, loads, client)

    def __contains__(self, name: str) -> bool:
        return name in self._served

    def __iter__(self) -> Iterator[ServedAdapter]:
        return iter(self._served.values())

    def __getitem__(self, name: str) -> ServedAdapter:
        return self._served[name]

    def described(self) -> list[dict[str, str | int]]:
        """Describes what is loaded, for operators; bytes are of this machine's memory."""
        return [
            {
                "name": one.ref.name,
                "path": one.path,
                "rank": one.rank,
                "bytes": one.bytes,
                "sha256": one.ref.digest,
            }
            for one in self
        ]

    def could_serve(self, name: str) -> bool:
        """Tells whether the name is an adapter's, loaded or in the directory."""
        return name in self._served or self._folder(name) is not None

    def taken(self, name: str) -> AdapterRef | None:
        """Returns the adapter for a request that names it; None: the model as it is."""
        served = self._served.get(name)
        if served is None:
            return None
        served.used = time.monotonic()
        return served.ref

    def set_ready(self, reports: Sequence[AdapterReport]) -> None:
        """Notes what an engine has loaded: at first the adapters of the flags, in the place of a lost one
        all that are served; those that it could not load are served no more."""
        first, self._first = self._first, False
        for report in reports if first else ():
            self._add(report)
        for report in (one for one in reports if one.error):
            for served in [one for one in self if one.ref.digest == report.digest]:
                _log().error("LoRA adapter %s is not served any more: %s", served.ref.name, report.error)
                del self._served[served.ref.name]

    async def load(self, name: str, path: Path, *, inplace: bool) -> ServedAdapter:
        """Loads the adapter in a directory.  Raises ApiError: 400 for a name that is taken unless it is
        loaded `inplace`, and for files that cannot be used; 404 for a directory that holds no adapter; 503
        where there is no room."""
        async with self._lock:
            if name in self._served and not inplace:
                raise invalid(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                    "place, set 'load_inplace' to True.",
                    "lora_name",
                )
            return await self._load(name, path)

    async def fetch(self, name: str | None) -> None:
        """Loads an adapter of the directory, if the name is that of one.  Raises ApiError as `load` does, for
        the field `model`."""
        if name is None or name in self._served or self._dir is None:
            return
        async with self._lock:
            folder = self._folder(name)
            if name in self._served or folder is None:
                return
            if len(self._served) >= self._most:
                self._make_room()
            try:
                (await self._load(name, folder)).on_demand = True
            except ApiError as error:
                error.param = "model"
                raise

    async def unload(self, name: str) -> None:
        """Refuses requests for the name from now on; those under way go on.  Raises KeyError."""
        async with self._lock:
            self._drop(name)

    def _folder(self, name: str) -> Path | None:
        """Returns the directory of the adapter that a request may load by its name: no name leads out."""
        if self._dir is None or not is_adapter_name(name):
            return None
        folder = self._dir.resolve() / name
        holds = (folder / CONFIG).is_file() and folder.resolve() == folder
        return folder if holds else None

    async def _load(self, name: str, path: Path) -> ServedAdapter:
        await asyncio.to_thread(check_room, path)
        old = self._served.get(name)
        replaced = old.ref.digest if old is not None and self._names(old.ref.digest) == 1 else ""
        report = await self._loads.load(name, str(path), replaced)
        if report.retry:
            raise unavailable(f"{name}: {report.error}")
        if report.error:
            raise invalid(report.error, "lora_path")
        return self._add(report)

    def _add(self, report: AdapterReport) -> ServedAdapter:
        ref = AdapterRef(report.name, report.digest)
        served = ServedAdapter(ref, report.path, report.rank, report.bytes, int(time.time()))
        self._served[report.name] = served
        return served

    def _drop(self, name: str) -> None:
        digest = self._served.pop(name).ref.digest
        if not self._names(digest):
            self._loads.unload(digest)

    def _names(self, digest: str) -> int:
        """Counts the names of a content."""
        return sum(one.ref.digest == digest for one in self)

    def _make_room(self) -> None:
        """Drops the adapter that was asked for the longest ago, of those that requests have loaded and none
        has now.  Raises ApiError (429) where there is none."""
        held = {ref.digest for refs in self._client.adapters_in_use for ref in refs}
        idle = [one for one in self if one.on_demand and one.ref.digest not in held]
        if not idle:
            raise overloaded(f"{self._most} LoRA adapters are loaded and in use (--max-loras); retry later.")
        self._drop(min(idle, key=lambda one: one.used).ref.name)


def check_room(path: Path) -> None:
    """Raises ApiError: 404 where a directory holds no adapter, 400 where its files cannot be read, and 503
    where it takes more memory than is free."""
    from corepipe.models.adapters.peft import bytes_needed  # noqa: PLC0415 -- nobody else needs them
    from corepipe.serving.supervision.memory import free_memory  # noqa: PLC0415

    try:
        if not (path / CONFIG).is_file():
            message = f"No adapter found at {echo(str(path))}."
            raise ApiError(404, message, code="adapter_not_found", param="lora_path")
        needed, free = bytes_needed(path), free_memory()
    except UserError as error:
        raise invalid(error.message, "lora_path") from None
    except OSError as error:
        raise invalid(f"{echo(str(path))}: {why(error)}", "lora_path") from None
    if needed > free:
        raise unavailable(f"{shown(path.name)} takes {needed:,} bytes of memory; {free:,} are free.")


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
