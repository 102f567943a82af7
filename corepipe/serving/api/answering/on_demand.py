"""The models that a server loads when a request names one, and what stays of each when it has left."""

from __future__ import annotations

import asyncio
import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from prometheus_client.registry import Collector

from corepipe.engine.freeze_heap import give_back
from corepipe.errors import UserError
from corepipe.models.directory import FoundModel
from corepipe.serving.api.answering.service import Service
from corepipe.serving.supervision.engine_process import EngineError
from corepipe.serving.telemetry.observer import Observer

if TYPE_CHECKING:  # its module imports those of the engine
    from corepipe.serving.supervision.client import EngineClient

MOST_KEPT = 64
"""Models whose counters stay when they have left; of more, those that left first are forgotten, so that
/metrics stays bounded."""


MOST_LOADS = 3
"""Engines that are tried for a load; one may be killed while it loads."""


class Kept(NamedTuple):
    """Counters of a model that left, so that its counters continue when it is back."""

    client: EngineClient
    observer: Observer


class ModelSource(Protocol):
    """A source of models that can be loaded.  Methods may take a while, and are called from threads."""

    def prepare(self) -> None:
        """Prepares the first load; called by the event loop's thread."""

    def look(self) -> Mapping[str, FoundModel]:
        """Returns the models that can be loaded, by name."""

    def measure(self, found: FoundModel) -> int:
        """Returns the bytes of memory that a model takes.  Raises UserError for one that is broken."""

    def make(self, found: FoundModel, kept: Kept | None) -> Service:
        """Returns a model whose engine is not started yet.  Raises UserError for one that is broken."""

    def close(self) -> None:
        """Ends what is kept for all models; called by the event loop's thread."""


class OnDemandModels:
    """The models of a source: those that are there now as services, and what is known of the others.

    resident: the services of models that are loaded or asleep.  `lose` is called with the name and the error
    of one that lost its engine for good.  metrics, neuron: the collectors of all models of the server.
    """

    def __init__(self, source: ModelSource, lose: Callable[[str, Exception], None]) -> None:
        self.resident: dict[str, Service] = {}
        self._source = source
        self._lose = lose
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._sizes: dict[str, tuple[FoundModel, int]] = {}
        self._found: Mapping[str, FoundModel] = {}
        self.metrics: dict[str, Sequence[Collector]] = {}
        self.neuron: dict[str, Sequence[Collector]] = {}

    async def start(self) -> None:
        """Prepares the first load, and reads which models there are."""
        self._source.prepare()
        await self.look()

    async def look(self) -> Mapping[str, FoundModel]:
        """Returns the models that can be served, by name."""
        self._found = await asyncio.to_thread(self._source.look)
        return self._found

    async def find(self, name: str) -> FoundModel | None:
        """Returns the model of that name, if there is one."""
        return self._found.get(name) or (await self.look()).get(name)

    async def size(self, found: FoundModel) -> int:
        """Returns the bytes of memory that a model takes.  Raises UserError for one that is broken."""
        known = self._sizes.get(found.name)
        if known is None or known[0] is not found:
            known = found, await asyncio.to_thread(self._source.measure, found)
            self._sizes[found.name] = known
        return known[1]

    async def load(self, name: str) -> None:
        """Loads a model, or wakes it.  Raises UserError or EngineError."""
        service = self.resident.get(name) or await self._made(name)
        for left in reversed(range(MOST_LOADS)):
            try:
                await service.load()
                return
            except EngineError:
                await service.client.sleep()  # another process may have killed it
                if not left:
                    raise
            except BaseException:
                await service.client.sleep()
                raise

    async def _made(self, name: str) -> Service:
        found = await self.find(name)
        if found is None:
            raise UserError(f"{name}: its files are gone", "model")
        service = await asyncio.to_thread(self._source.make, found, self._kept.get(name))
        service.listed = service.names
        service.on_failure = lambda: self._lose(name, service.failure or RuntimeError("its engine is gone"))
        self._kept[name] = Kept(service.client, service.observer)
        self.metrics[name], self.neuron[name] = service.metrics.collectors, (service.neuron,)
        self.resident[name] = service
        return service

    def drop(self, name: str) -> None:
        """Frees the tokenizer of a model whose engine has ended; its counters stay."""
        service = self.resident.pop(name, None)
        if service is None:
            return
        service.leave()
        asyncio.get_running_loop().run_in_executor(None, _free, [service])
        del service
        self._kept.move_to_end(name)
        for old in [one for one in self._kept if one not in self.resident][:-MOST_KEPT]:
            del self._kept[old], self.metrics[old], self.neuron[old]

    async def close(self) -> None:
        """Closes all engines."""
        await asyncio.gather(*(kept.client.close() for kept in self._kept.values()))
        self._source.close()


def _free(left: list[Service]) -> None:
    """Frees the tokenizer of the only service in a list, and the process that renders its chats."""
    left.pop().close()
    gc.collect()  # it has references to itself, and the process ends with it
    give_back()
