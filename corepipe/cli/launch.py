"""From checked settings to a running server, and what stderr says on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer
import uvloop

from corepipe import __version__
from corepipe.cli.common import errors, progress_bar
from corepipe.cli.placement import print_placement
from corepipe.cli.ports import open_ports, tell_of_admin_port, tell_of_faults, url_of
from corepipe.errors import UserError
from corepipe.models import cache, hub, registry
from corepipe.models.checkpoints import integrity
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.models.text.tokenizer_trial import try_tokenizer
from corepipe.neuron.graph import FORMATS
from corepipe.serving.api.app import create_app, serve
from corepipe.serving.api.cassettes.deck import Deck
from corepipe.serving.config import EngineConfig, ServerConfig
from corepipe.serving.messages import Progress, Ready
from corepipe.serving.supervision.child import EngineError
from corepipe.serving.supervision.supervisor import ProcessClient


def launch(engine: EngineConfig, server: ServerConfig) -> None:
    """Serves until a signal.  Raises UserError for what cannot be served, Exit where the engine dies loading.

    Listens first, so that a port in use is known at once; the engine loads behind the open port.
    """
    listeners = open_ports(server)
    deck = None if server.record is None and server.replay is None else Deck(server)
    with progress_bar(errors()) as report:
        path = hub.resolve(engine.model, report)
        if server.verify:
            integrity.verify(path, report)
    tokenizer = _tokenizer(path, server)
    resolved = engine.model_copy(update={"model": str(path)})
    urls = [url_of(one, server) for one in listeners]
    client = _AnnouncedClient(resolved, urls, server.max_queue_seconds)
    app = create_app(client, tokenizer, engine, server, __version__, deck=deck)
    service = app.state.models.first
    service.lateness.warn = lambda line: errors().print(f"corepipe: {line}")
    client.notes.append(service.dialect.summary())
    tell_of_faults(server)
    _tell_of_cassettes(server, deck)
    try:
        with cache.in_use(path):
            uvloop.run(serve(app, server, listeners))
    except EngineError as error:  # the engine's own words are on stderr already
        errors().print(f"corepipe: {error}")
        raise typer.Exit(1) from error


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
    stored = registry.load(Path(model)).checkpoint.stored_as
    return stored and f"weights: {stored} -> read as fp32, stored as {FORMATS[fmt].weights.value}"


def _tell_of_cassettes(server: ServerConfig, deck: Deck | None) -> None:
    if deck is not None and deck.library is not None:
        errors().print(f"replaying {len(deck.library)} exchanges of {server.replay}", markup=False)
    folder, _ = server.recorded_into
    if folder is not None:
        errors().print(f"recording into {folder}", markup=False)


class _AnnouncedClient(ProcessClient):
    """Shows on stderr how far loading is, then what is served where, with `notes` on it."""

    def __init__(self, config: EngineConfig, urls: list[str], queue_seconds: float | None) -> None:
        super().__init__(config, queue_seconds=queue_seconds)
        self.notes: list[str] = []
        self._urls = urls
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
        console.print(
            f"ready in {ready.load_seconds:.1f} s on {ready.isa} kernels, {ready.threads}: "
            f"{self._urls[0]}/v1 (up to {ready.max_model_len} tokens a request); Ctrl-C ends it",
            markup=False,
        )
        tell_of_admin_port(self._urls)
        return ready
