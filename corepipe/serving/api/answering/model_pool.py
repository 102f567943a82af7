"""The pool of a server's models: they are loaded, wake and leave as requests need them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from math import ceil

from starlette.types import Receive

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError, shown
from corepipe.models.directory import FoundModel
from corepipe.serving.api.answering.on_demand import ModelSource, OnDemandModels
from corepipe.serving.api.answering.service import STATES, Service
from corepipe.serving.api.answering.submission import while_connected
from corepipe.serving.api.http.errors import ApiError, echo, invalid, unavailable
from corepipe.serving.config import ServerConfig
from corepipe.serving.supervision.engine_pool import EnginePool, NotLoadedError
from corepipe.serving.supervision.pool import ModelState, PoolFullError, PoolLimits, TooLargeError

MOST_WAIT_SECONDS = 600.0
"""The time that a request waits for its model at most, unless --max-queue-seconds sets another."""
MOST_RETRY_SECONDS = 30
MOST_SHOWN = 300
"""Characters of an error on a model's card."""
NO_RETRY = {"x-should-retry": "false"}
"""The header by which OpenAI's clients know that the same request would fail again."""


def limits_of(server: ServerConfig, engine: EngineConfig, nbytes: int = 0) -> PoolLimits | None:
    """Returns the limits of a server's models; None where none of them can ever leave or sleep.

    nbytes: memory for the models of directories.
    """
    if server.fleet is not None:
        return None
    if not server.models_dirs and server.sleep_idle_seconds is None and server.admin_port is None:
        return None
    return PoolLimits(server.max_models, nbytes, engine.max_queued_requests, server.sleep_idle_seconds)


class ModelPool:
    """The models of a server that may sleep or leave: the host of its `EnginePool`.

    fixed: those that are loaded at the start.  source: others that are loaded when they are named.
    """

    def __init__(
        self,
        limits: PoolLimits,
        fixed: Sequence[Service],
        source: ModelSource | None = None,
        wait_seconds: float | None = None,
    ) -> None:
        self.engines = EnginePool(limits, self)
        self.on_demand = None if source is None else OnDemandModels(source, self.engines.lost)
        self._fixed = {one.names[0]: one for one in fixed}
        self._wait_seconds = wait_seconds or MOST_WAIT_SECONDS
        for name in self._fixed:
            self.engines.pool.add_fixed(name)

    @property
    def resident(self) -> Sequence[Service]:
        """The models of the source that are loaded or asleep."""
        return [] if self.on_demand is None else [*self.on_demand.resident.values()]

    async def find(self, name: str) -> FoundModel | None:
        """Returns the model of the source with that name, if there is one."""
        return None if self.on_demand is None else await self.on_demand.find(name)

    def started(self, service: Service) -> None:
        """Notes that a model has loaded that is loaded at the start."""
        if service.failure is None:
            self.engines.started(service.names[0])

    @asynccontextmanager
    async def using(self, name: str, receive: Receive) -> AsyncIterator[Service]:
        """Yields a model once it is loaded; it stays until the body of `async with` ends.

        name: of a model of the source, or the first one of a fixed model.  receive: that of the request,
        whose client may leave while it waits.  Raises ApiError where the model cannot be loaded in time.
        """
        fixed = self._fixed.get(name)
        if fixed is not None and (fixed.ready is None or fixed.failure is not None):
            yield fixed  # it refuses all requests
            return
        async with AsyncExitStack() as stack:
            with self._refusals(name):
                use = self.engines.using(name, 0 if fixed is not None else await self._size(name))
                if self.engines.pool.state(name) is ModelState.LOADED:
                    await stack.enter_async_context(use)
                else:
                    await self._wait(stack, use, receive)
            yield self._service(name)

    async def send_away(self, service: Service, becomes: ModelState, *, abort: bool = False) -> None:
        """Lets a model sleep or leave; its answers end first, or are aborted."""
        if abort:
            service.client.abort_all()
        await self.engines.send_away(service.names[0], becomes)

    def status(self, name: str) -> dict[str, object]:
        """Returns the state of a model for its card."""
        state = self.engines.pool.state(name)
        value = ModelState.CLOSING if state is ModelState.LEAVING else state
        failure = self.engines.failures.get(name)
        if failure is None:
            return {"value": value.value}
        return {"value": value.value, "failed": True, "error": shown(failure, MOST_SHOWN)}

    async def load(self, name: str) -> None:
        """Implements `ModelHost`."""
        if name in self._fixed:
            await self._fixed[name].load()
        elif self.on_demand is not None:
            await self.on_demand.load(name)

    async def close(self, name: str) -> None:
        """Implements `ModelHost`."""
        await self._service(name).sleep()

    def drop(self, name: str) -> None:
        """Implements `ModelHost`."""
        if self.on_demand is not None:
            self.on_demand.drop(name)

    def drain(self) -> None:
        """Refuses the requests that wait; may be called by the handler of a signal, between any two lines."""
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(self.engines.refuse_all, unavailable(STATES["draining"]))

    async def end(self) -> None:
        """Ends all loads, and the engines of the source's models."""
        await self.engines.close()
        if self.on_demand is not None:
            await self.on_demand.close()

    async def _size(self, name: str) -> int:
        """Returns the bytes that a model of the source takes.  Raises UserError."""
        found = await self.find(name)
        if found is None or self.on_demand is None:
            raise UserError("its files are gone", "model")
        return await self.on_demand.size(found)

    async def _wait(
        self, stack: AsyncExitStack, use: AbstractAsyncContextManager[None], receive: Receive
    ) -> None:
        """Waits until a model is loaded, while its client is there.  Raises TimeoutError and ApiError."""
        there = False
        async with asyncio.timeout(self._wait_seconds):
            async with while_connected(receive):
                await stack.enter_async_context(use)
                there = True
        if not there:
            raise invalid("The client left while it waited for the model.")

    def _service(self, name: str) -> Service:
        """Returns a model that is there.  Raises ApiError (503) if it has just lost its engine for good."""
        service = self._fixed.get(name)
        if service is None and self.on_demand is not None:
            service = self.on_demand.resident.get(name)
        if service is None:
            raise unavailable(STATES["failed"])
        return service

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        """Raises an ApiError for what keeps a model from being loaded."""
        limits, seconds = self.engines.pool.limits, self._retry_seconds()
        try:
            yield
        except TimeoutError:
            message = f"{echo(name)} got no room within {self._wait_seconds:g} s: other models are in use."
            raise unavailable(message, seconds) from None
        except PoolFullError:
            message = f"{limits.waiting} requests wait for their models; --max-num-queued-reqs is reached."
            raise unavailable(message, seconds) from None
        except TooLargeError:
            message = f"{echo(name)} needs more than the {limits.nbytes / 1e9:.1f} GB that models have here."
            raise ApiError(500, message, code="model_too_large", param="model", headers=NO_RETRY) from None
        except NotLoadedError as error:
            raise self._not_loaded(name, error.__cause__) from None
        except UserError as error:
            self.engines.failures[name] = error.message
            raise self._not_loaded(name, error) from None

    def _not_loaded(self, name: str, cause: BaseException | None) -> ApiError:
        """Returns error 500 for a model that is broken, else 503; the next request tries again anyway."""
        message = f"The model {echo(name)} could not be loaded: {cause}"
        if isinstance(cause, UserError):
            return ApiError(500, message, code="model_not_loaded", param="model", headers=NO_RETRY)
        return unavailable(message, self._retry_seconds())

    def _retry_seconds(self) -> int:
        """Returns the seconds in which all models load that are waited for, at the pace of the last one."""
        wanted = sum(bool(slot.waiting) for slot in self.engines.pool.slots.values())
        return min(max(1, ceil(wanted * self.engines.load_seconds)), MOST_RETRY_SECONDS)
