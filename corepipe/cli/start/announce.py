"""Messages on stderr while a model loads, and on what is served where once it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from corepipe.cli.output.common import errors, progress_bar
from corepipe.cli.output.placement import deployment_line, memory_line, print_placement, to_know
from corepipe.cli.start.ports import other_ports
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import LoadProgress, Ready
from corepipe.models import registry
from corepipe.neuron.formats import FORMATS, DType
from corepipe.serving.api.http.ports import ServerPort
from corepipe.serving.config import ServerConfig
from corepipe.serving.supervision.engine_process import EngineProcess
from corepipe.serving.supervision.supervisor import ProcessClient

MOST_LINES = 5
"""Lines of the summary when a model has loaded: of the eight of a first start, three are on fetching,
unpacking and packing it."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The messages once a model has loaded: the last model's say where the server is.

    names: those of all models, where there are several.  common: further lines on the server.  verbose: print
    all that is known of the deployment.
    """

    name: str
    names: Sequence[str]
    urls: Mapping[ServerPort, str]
    common: Sequence[str] = ()
    verbose: bool = False

    def line(self, ready: Ready) -> str:
        """Returns the line that says that a model is ready."""
        whose = f"{self.name}: " if self.names else ""
        alike = " (--bits same)" if ready.placement.get("bits") == "same" else ""
        loaded = f"{whose}ready in {ready.load_seconds:.1f} s on {ready.isa} kernels{alike}, {ready.threads}"
        room = f"(requests of up to {ready.max_model_len} tokens)"
        return f"{loaded} {room}" if self.names else f"{loaded}: {self._address} {room}; {self._hint}"

    def in_short(self, ready: Ready, notes: Sequence[str]) -> list[str]:
        """Returns the summary of at most `MOST_LINES`; for one of several models it is one line."""
        said = [deployment_line(ready.placement), memory_line(ready.placement)]
        known = [*to_know(ready.placement), *notes]
        if self.names:
            return ["; ".join([self.line(ready), *said, *known]), *self.at_last()]
        ports = self._other_ports()
        room = MOST_LINES - len(said) - 1 - len(ports)
        return [*said, *_fitted([*known, *self.common], room), self.line(ready), *ports]

    def at_last(self) -> list[str]:
        """Returns the lines that follow once all models have loaded."""
        if not self.last:
            return []
        where = [f"ready: {self._address} ({', '.join(self.names)}); {self._hint}"] if self.names else []
        return [*self.common, *where, *self._other_ports()]

    def _other_ports(self) -> list[str]:
        ports = other_ports(self.urls)
        return ["; ".join(ports)] if ports else []

    @property
    def last(self) -> bool:
        return not self.names or self.name == self.names[-1]

    @property
    def _address(self) -> str:
        return f"{self.urls[ServerPort.PUBLIC]}/v1"

    @property
    def _hint(self) -> str:
        return "Ctrl-C stops it" if self.verbose else "Ctrl-C stops it, --verbose prints more"


def on_demand_lines(server: ServerConfig, urls: Mapping[ServerPort, str]) -> list[str]:
    """Returns the lines of a server that loads all its models on demand."""
    where = ", ".join(map(str, server.models_dirs))
    room = f"up to {server.max_models} at a time, when a request names one"
    return [
        f"ready: {urls[ServerPort.PUBLIC]}/v1 (models of {where}: {room}); Ctrl-C stops it",
        *other_ports(urls),
    ]


def _fitted(lines: Sequence[str], room: int) -> Sequence[str]:
    """Returns as many lines as there is room for; the last one holds the rest."""
    whole = max(0, room - 1)
    return lines if len(lines) <= room else [*lines[:whole], "; ".join(lines[whole:])]


class LoadingDisplay:
    """Shows on stderr how far loading is, then what is served where.

    notes: to be said in short.  details: for who wants to know all.
    """

    def __init__(self, said: Announcement) -> None:
        self.notes: list[str] = []
        self.details: list[str] = []
        self._said = said

    async def shown(
        self,
        start: Callable[[Callable[[LoadProgress], None]], Awaitable[Ready]],
        progress: Callable[[LoadProgress], None] | None,
    ) -> Ready:
        """Runs `start`, shows its progress, and returns what it returns."""
        console = errors()
        with progress_bar(console) as report:

            def show(event: LoadProgress) -> None:
                report(event.what, event.done)
                if progress is not None:
                    progress(event)

            ready = await start(show)
        if self._said.verbose:
            print_placement(console, ready.placement)
        for line in self._in_full(ready) if self._said.verbose else self._said.in_short(ready, self.notes):
            console.print(line)
        return ready

    def _in_full(self, ready: Ready) -> list[str]:
        """Returns the lines that follow the table of the cores."""
        lines = [memory_line(ready.placement), *self.details]
        if ready.kernels_left_out:
            names = ", ".join(ready.kernels_left_out)
            lines.append(f"kernels not built: {names} (to build them: COREPIPE_TABLES=all make setup)")
        return [*lines, self._said.line(ready), *self._said.at_last()]


class AnnouncedClient(ProcessClient):
    """An engine on this machine, and the messages on it."""

    def __init__(
        self,
        config: EngineConfig,
        said: Announcement,
        queue_seconds: float | None,
        process: EngineProcess | None = None,
    ) -> None:
        """`process`: of the first engine, where it has been made."""
        whose = f"the engine of {said.name}" if said.names else "the engine"
        super().__init__(config, queue_seconds=queue_seconds, called=whose, first=process)
        self.told = LoadingDisplay(said)
        self._announced = False

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        """Loads; only the first load is announced, not that of an engine that slept."""
        if self._announced:
            return await super().start(progress)
        self._announced = True
        return await self.told.shown(super().start, progress)


def of_weights(model: registry.Model, fmt: str) -> str | None:
    """Says how quantised weights are stored; None for plain ones, for which --dtype says it.  Raises
    UserError where they cannot be read."""
    kinds, direct, floats = model.checkpoint.stored_as
    weights = FORMATS[fmt].weights
    if kinds is None:
        return None
    if weights is not DType.INT4:
        return f"weights: {kinds} -> read as fp32, stored as {weights.value}"
    parts = [] if direct is None else [f"{direct} kept as they are"]
    parts += [] if floats is None else [f"{floats} quantised again, as int4"]
    if floats != kinds:
        parts.append("other quantised ones as int8" if parts else "stored as int8")
    return f"weights: {kinds} -> {', '.join(parts)}"
