"""From checked settings to a running server, and what stderr says on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import typer
import uvloop

from corepipe import __version__
from corepipe.cli.common import errors, progress_bar
from corepipe.cli.placement import print_placement
from corepipe.cli.ports import open_ports, tell_of_faults, tell_of_other_ports, urls_of
from corepipe.errors import UserError
from corepipe.models import cache, hub, registry
from corepipe.models.checkpoints import integrity
from corepipe.models.tasks import Task
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.models.text.tokenizer_trial import try_tokenizer
from corepipe.neuron.graph import FORMATS, DType
from corepipe.neuron.packed_index import weights_size
from corepipe.serving.api.app import create_app_of, serve
from corepipe.serving.api.cassettes.deck import Deck
from corepipe.serving.api.port_router import Port
from corepipe.serving.api.routes.models import Models
from corepipe.serving.api.routes.service import Service
from corepipe.serving.config import EngineConfig, ServerConfig
from corepipe.serving.engine.assembly import default_kv_bytes, timing_model
from corepipe.serving.engine.device_plan import graph_of
from corepipe.serving.engine.host_limits import host_cpus, host_memory
from corepipe.serving.engine.sharing import Tenancy, check_weights, shared
from corepipe.serving.messages import Progress, Ready
from corepipe.serving.supervision.child import EngineError
from corepipe.serving.supervision.supervisor import ProcessClient


def launch(asked: Sequence[tuple[EngineConfig, ServerConfig]]) -> None:
    """Serves until a signal: each of these models, at the port and with the keys and limits of the first.

    Raises UserError for what cannot be served, Exit where an engine dies loading.  Listens first, so that a
    port in use is known at once; the engines load behind the open port.
    """
    _, server = asked[0]
    listeners = open_ports(server)
    deck = None if server.record is None and server.replay is None else Deck(server)
    found = [_Found.of(engine, own) for engine, own in asked]
    urls = urls_of(listeners, server)
    models = Models([_service(one, urls, found) for one in _with_shares(found)])
    app = create_app_of(models, server, deck)
    tell_of_faults(server)
    _tell_of_cassettes(server, deck)
    try:
        with ExitStack() as stack:
            for one in found:
                stack.enter_context(cache.in_use(one.path))
            uvloop.run(serve(app, server, listeners))
    except EngineError as error:  # the engine's own words are on stderr already
        errors().print(f"corepipe: {error}")
        raise typer.Exit(1) from error


@dataclass(frozen=True, slots=True)
class _Found:
    """A model that is here.  engine: as it was asked for; resolved: with its path, and its share."""

    path: Path
    tokenizer: Tokenizer
    engine: EngineConfig
    resolved: EngineConfig
    server: ServerConfig

    @classmethod
    def of(cls, engine: EngineConfig, server: ServerConfig) -> _Found:
        """Fetched if need be.  Raises UserError."""
        with progress_bar(errors()) as report:
            path = hub.resolve(engine.model, report)
            if server.verify:
                integrity.verify(path, report)
        resolved = engine.model_copy(update={"model": str(path)})
        return cls(path, _tokenizer(path, server), engine, resolved, server)

    @property
    def name(self) -> str:
        return self.server.served_model_names[0]

    def with_share(self, resolved: EngineConfig) -> _Found:
        """As the engine is to run it; what is told of it knows its cores, too."""
        cores = {"first_core": resolved.first_core, "cores": resolved.cores}
        return replace(self, engine=self.engine.model_copy(update=cores), resolved=resolved)


def _with_shares(found: Sequence[_Found]) -> list[_Found]:
    """Where there are several: each with its part of the device and of the host.  Raises UserError."""
    if len(found) == 1:
        return list(found)
    models = [Tenancy(one.name, one.resolved, _timed(one)) for one in found]
    configs = shared(models, host_cpus().count, default_kv_bytes(found[0].resolved))
    check_weights({one.name: _weights_size(one) for one in found}, host_memory())
    return [one.with_share(config) for one, config in zip(found, configs, strict=True)]


def _weights_size(one: _Found) -> int:
    """Bytes of host memory that its weights take."""
    model, config = registry.load(one.path), one.resolved.model_copy(update={"max_model_len": None})
    return weights_size(graph_of(config, model, model.task(config.task)))


def _timed(one: _Found) -> registry.Architecture:
    timed = one.resolved.timing_model
    return registry.load(one.path) if timed is None else timing_model(timed)


def _service(one: _Found, urls: Mapping[Port, str], found: Sequence[_Found]) -> Service:
    """Its engine, which is yet to start, and its text."""
    names = [each.name for each in found] if len(found) > 1 else []
    client = _AnnouncedClient(
        one.resolved, _Announcement(one.name, names, urls), one.server.max_queue_seconds
    )
    tokenizer, template = one.tokenizer, one.server.chat_template
    if template is not None:
        tokenizer = tokenizer.with_chat_template(template)
    task = registry.load(one.path).task(one.engine.task)
    service = Service(client, tokenizer, one.engine, one.server, __version__, task)
    service.lateness.warn = lambda line: errors().print(f"corepipe: {line}")
    if task.task is Task.GENERATE:
        client.notes.append(service.dialect.summary())
    return service


def _tokenizer(path: Path, server: ServerConfig) -> Tokenizer:
    """The tokenizer of the model at `path`, tried; its chat template, too, unless another one is given."""
    model = registry.load(path)
    if path.is_dir():
        try_tokenizer(path)
    tokenizer = model.tokenizer()
    if server.chat_template is None:
        try:
            tokenizer.check_chat_template()
        except UserError as error:
            raise UserError(f"{path}: {error.message}") from error
    return tokenizer


def _weights(model: str, fmt: str) -> str | None:
    """What becomes of weights that are quantised; None for plain ones, of which --dtype says it."""
    checkpoint, weights = registry.load(Path(model)).checkpoint, FORMATS[fmt].weights
    if checkpoint.stored_as is None:
        return None
    if weights is not DType.INT4:
        return f"weights: {checkpoint.stored_as} -> read as fp32, stored as {weights.value}"
    direct = checkpoint.four_bits_as
    kept = "stored as int8" if direct is None else f"{direct} as they are, others that are quantised as int8"
    return f"weights: {checkpoint.stored_as} -> {kept}"


def _tell_of_cassettes(server: ServerConfig, deck: Deck | None) -> None:
    if deck is not None and deck.library is not None:
        errors().print(f"replaying {len(deck.library)} exchanges of {server.replay}", markup=False)
    folder, _ = server.recorded_into
    if folder is not None:
        errors().print(f"recording into {folder}", markup=False)


@dataclass(frozen=True, slots=True)
class _Announcement:
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


class _AnnouncedClient(ProcessClient):
    """Shows on stderr how far loading is, then what is served where, with `notes` on it."""

    def __init__(self, config: EngineConfig, said: _Announcement, queue_seconds: float | None) -> None:
        whose = f"the engine of {said.name}" if said.names else "the engine"
        super().__init__(config, queue_seconds=queue_seconds, called=whose)
        self.notes: list[str] = []
        self._said = said
        self._model, self._format = config.model, config.format

    async def start(self, progress: Callable[[Progress], None] | None = None) -> Ready:
        console = errors()
        with progress_bar(console) as report:

            def show(event: Progress) -> None:
                report(event.what, event.done)
                if progress is not None:
                    progress(event)

            ready = await super().start(show)
        print_placement(console, ready.placement)
        if (weights := _weights(self._model, self._format)) is not None:
            console.print(weights, markup=False)
        for note in self.notes:
            console.print(note, markup=False)
        console.print(self._said.line(ready), markup=False)
        if self._said.last:
            tell_of_other_ports(self._said.urls)
        return ready
