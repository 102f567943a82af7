"""From checked settings to a running server, and what stderr says on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
import uvloop

from corepipe import __version__
from corepipe.cli.announce import AnnouncedClient, Announcement, of_weights
from corepipe.cli.common import errors
from corepipe.cli.ports import tell_of_faults, urls_of
from corepipe.cli.starting import Found, Starting
from corepipe.errors import UserError
from corepipe.models import cache, registry
from corepipe.models.tasks import Task
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.models.text.tokenizer_trial import try_tokenizer
from corepipe.neuron.packed_index import weights_size
from corepipe.serving.api.app import create_app_of, serve
from corepipe.serving.api.cassettes.deck import Deck
from corepipe.serving.api.port_router import Port
from corepipe.serving.api.routes.models import Models
from corepipe.serving.api.routes.service import Service
from corepipe.serving.config import EngineConfig, ServerConfig
from corepipe.serving.engine.assembly import default_kv_bytes, timing_model
from corepipe.serving.engine.device_plan import graph_of
from corepipe.serving.engine.draft_host import draft_path, load_draft
from corepipe.serving.engine.draft_plan import draft_graph
from corepipe.serving.engine.host_limits import host_cpus, host_memory
from corepipe.serving.engine.sharing import Tenancy, check_weights, shared
from corepipe.serving.supervision.engine_process import EngineError

if TYPE_CHECKING:
    from corepipe.cli.fleet_client import AnnouncedFleet


def launch(start: Starting) -> None:
    """Serves until a signal: each of these models, at the port and with the keys and limits of the first.

    Raises UserError for what cannot be served, Exit where an engine dies loading.  The engines load behind
    the open port.
    """
    server, listeners = start.found[0].server, list(start.listeners)
    deck = None if server.record is None and server.replay is None else Deck(server)
    urls = urls_of(listeners, server)
    models = Models([_service(one, urls, start.found) for one in _with_shares(start.found)])
    app = create_app_of(models, server, deck)
    tell_of_faults(server)
    _tell_of_cassettes(server, deck)
    try:
        with ExitStack() as stack:
            for one in start.found:
                stack.enter_context(cache.in_use(one.path))
                if (draft := draft_path(one.resolved)) is not None:
                    stack.enter_context(cache.in_use(draft))
            uvloop.run(serve(app, server, listeners))
    except EngineError as error:  # the engine's own words are on stderr already
        errors().print(f"corepipe: {error}")
        raise typer.Exit(1) from error


def _with_shares(found: Sequence[Found]) -> list[Found]:
    """Where there are several: each with its part of the device and of the host.  Raises UserError."""
    if len(found) == 1:
        return list(found)
    models = [Tenancy(one.name, one.resolved, _timed(one)) for one in found]
    configs = shared(models, host_cpus().count, default_kv_bytes(found[0].resolved))
    check_weights({one.name: _weights_size(one) for one in found}, host_memory())
    return [_with_share(one, config) for one, config in zip(found, configs, strict=True)]


def _with_share(one: Found, resolved: EngineConfig) -> Found:
    """As the engine is to run it; what is told of it knows its cores, too."""
    cores = {"first_core": resolved.first_core, "cores": resolved.cores}
    return replace(one, engine=one.engine.model_copy(update=cores), resolved=resolved)


def _weights_size(one: Found) -> int:
    """Bytes of host memory that its weights take."""
    model, config = registry.load(one.path), one.resolved.model_copy(update={"max_model_len": None})
    graph = graph_of(config, model, model.task(config.task))
    draft = load_draft(config)
    beside = 0 if draft is None else weights_size(draft_graph(draft, graph))
    return weights_size(graph) + beside


def _timed(one: Found) -> registry.Architecture:
    timed = one.resolved.timing_model
    return registry.load(one.path) if timed is None else timing_model(timed)


def _service(one: Found, urls: Mapping[Port, str], found: Sequence[Found]) -> Service:
    """Its engine, which is yet to start, and its text."""
    names = [each.name for each in found] if len(found) > 1 else []
    model, template = registry.load(one.path), one.server.chat_template
    tokenizer = _tokenizer(one.path, model, tried=template is None)
    if template is not None:
        tokenizer = tokenizer.with_chat_template(template)
    client, task = _client(one, Announcement(one.name, names, urls)), model.task(one.engine.task)
    with suppress(UserError):  # the engine reads them, and says what is wrong
        client.notes += filter(None, [of_weights(model, one.engine.format)])
    service = Service(client, tokenizer, one.engine, one.server, __version__, task)
    service.lateness.warn = lambda line: errors().print(f"corepipe: {line}")
    if task.task is Task.GENERATE:
        client.notes.append(service.dialect.summary())
    return service


def _tokenizer(path: Path, model: registry.Model, *, tried: bool) -> Tokenizer:
    """The tokenizer of the model at `path`, which is tried; its chat template, too, where that is `tried`."""
    if path.is_dir():
        try_tokenizer(path)
    tokenizer = model.tokenizer()
    if tried:
        try:
            tokenizer.check_chat_template()
        except UserError as error:
            raise UserError(f"{path}: {error.message}") from error
    return tokenizer


def _tell_of_cassettes(server: ServerConfig, deck: Deck | None) -> None:
    if deck is not None and deck.library is not None:
        errors().print(f"replaying {len(deck.library)} exchanges of {server.replay}", markup=False)
    folder, _ = server.recorded_into
    if folder is not None:
        errors().print(f"recording into {folder}", markup=False)


def _client(one: Found, said: Announcement) -> AnnouncedClient | AnnouncedFleet:
    """Its engine here, or its engines on hosts of a fleet.  Raises UserError."""
    server = one.server
    if server.fleet is None:
        return AnnouncedClient(one.resolved, said, server.max_queue_seconds, one.process)
    from corepipe.cli.fleet_client import AnnouncedFleet  # noqa: PLC0415 -- who has no fleet does without

    return AnnouncedFleet.of(one.engine, said, server)
