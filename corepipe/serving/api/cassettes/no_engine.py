"""A client without an engine, for servers that only replay answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from corepipe.engine.lora import AdapterRef
from corepipe.engine.messages import LoadProgress, Ready, Stats, Submit
from corepipe.serving.api.answering.service import NO_MODEL_LOADED
from corepipe.serving.api.http.errors import unavailable

if TYPE_CHECKING:  # its module imports those of the engine
    from corepipe.serving.supervision.client import OutputStream

NOTHING_LOADED = Ready(
    placement={}, blocks=0, block_size=0, max_model_len=0, isa="no", load_seconds=0.0, threads="no model"
)


class NoEngine:
    """An `EngineClient` that is ready at once and refuses every request."""

    alive = True
    restarting = False
    stats: Sequence[Stats] = ()
    adapters = None
    adapters_in_use: tuple[frozenset[AdapterRef], frozenset[AdapterRef]] = (frozenset(), frozenset())

    def __init__(self) -> None:
        self.on_stats: Callable[[Stats], None] = _ignore
        self.on_ready: Callable[[Ready], None] = _ignore
        self.on_failure: Callable[[Exception], None] = _ignore
        self.restarts: Mapping[str, int] = {}
        self.refusals: Mapping[tuple[str, str], int] = {}

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:  # noqa: ARG002
        return NOTHING_LOADED

    def submit(self, submit: Submit) -> OutputStream:  # noqa: ARG002
        raise unavailable(NO_MODEL_LOADED)

    def abort(self, ids: Sequence[str]) -> None:
        """Does nothing: no request is under way."""

    def abort_all(self) -> None:
        """Does nothing: no request is under way."""

    async def sleep(self) -> None:
        """Does nothing: there is no engine to end."""

    async def close(self) -> None:
        """Does nothing: there is no engine to close."""


def _ignore(_report: object) -> None:
    """Does nothing: there is no engine to report anything."""
