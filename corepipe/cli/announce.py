"""What stderr says while a model loads, and of what is served where when it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from corepipe.cli.common import errors, progress_bar
from corepipe.cli.placement import print_placement
from corepipe.cli.ports import tell_of_other_ports
from corepipe.models import registry
from corepipe.neuron.graph import FORMATS, DType
from corepipe.serving.api.port_router import Port
from corepipe.serving.config import EngineConfig
from corepipe.serving.messages import Progress, Ready
from corepipe.serving.supervision.engine_process import EngineProcess
from corepipe.serving.supervision.supervisor import ProcessClient


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is said when a model has loaded: where the server is, once the last of them has.

    names: of all models, where there are several.
    """

    name: str
    names: Sequence[str]
    urls: Mapping[Port, str]

    def line(self, ready: Ready) -> str:
        """For stderr."""
        whose = f"{self.name}: " if self.names else ""
        alike = " with everyone's bits" if ready.placement.get("bits") == "same" else ""
        loaded = f"{whose}ready in {ready.load_seconds:.1f} s on {ready.isa} kernels{alike}, {ready.threads}"
        room = f"(up to {ready.max_model_len} tokens a request)"
        url = self.urls[Port.PUBLIC]
        return f"{loaded}: {url}/v1 {room}; Ctrl-C ends it" if self.last else f"{loaded} {room}"

    @property
    def last(self) -> bool:
        return not self.names or self.name == self.names[-1]


class Loading:
    """Shows on stderr how far loading is, then what is served where, with `notes` on it."""

    def __init__(self, said: Announcement) -> None:
        self.notes: list[str] = []
        self._said = said

    async def shown(
        self,
        start: Callable[[Callable[[Progress], None]], Awaitable[Ready]],
        progress: Callable[[Progress], None] | None,
    ) -> Ready:
        """What `start` gives, which is told of as it loads."""
        console = errors()
        with progress_bar(console) as report:

            def show(event: Progress) -> None:
                report(event.what, event.done)
                if progress is not None:
                    progress(event)

            ready = await start(show)
        print_placement(console, ready.placement)
        for note in self.notes:
            console.print(note, markup=False)
        if ready.kernels_left_out:
            names = ", ".join(ready.kernels_left_out)
            command = "COREPIPE_TABLES=all make setup builds them"
            console.print(f"kernels not built: {names} ({command})", markup=False)
        console.print(self._said.line(ready), markup=False)
        if self._said.last:
            tell_of_other_ports(self._said.urls)
        return ready


class AnnouncedClient(ProcessClient):
    """An engine here, and what is said of it."""

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
        self._loading = Loading(said)
        self.notes = self._loading.notes

    async def start(self, progress: Callable[[Progress], None] | None = None) -> Ready:
        return await self._loading.shown(super().start, progress)


def of_weights(model: registry.Model, fmt: str) -> str | None:
    """What becomes of weights that are quantised; None for plain ones, of which --dtype says it.  Raises
    UserError where they cannot be read."""
    checkpoint, weights = model.checkpoint, FORMATS[fmt].weights
    if checkpoint.stored_as is None:
        return None
    if weights is not DType.INT4:
        return f"weights: {checkpoint.stored_as} -> read as fp32, stored as {weights.value}"
    direct, floats = checkpoint.four_bits_as, checkpoint.floats_as
    parts = [] if direct is None else [f"{direct} as they are"]
    parts += [] if floats is None else [f"{floats} as int4, quantised anew"]
    if floats != checkpoint.stored_as:
        parts.append("others that are quantised as int8" if parts else "stored as int8")
    return f"weights: {checkpoint.stored_as} -> {', '.join(parts)}"
