"""From checked settings to a running server, with messages on stderr on the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import typer
import uvloop

from corepipe.cli.output.common import errors
from corepipe.cli.start.announce import AnnouncedClient, Announcement, of_weights, on_demand_lines
from corepipe.cli.start.ports import urls_of, warnings_of
from corepipe.cli.start.starting import PreparedServer, ResolvedModel, lora_flag
from corepipe.cli.start.tokenizers import tokenizer_of
from corepipe.errors import UserError
from corepipe.models import cache, registry
from corepipe.models.tasks import Task
from corepipe.serving.api.answering.model_pool import ModelPool, limits_of
from corepipe.serving.api.answering.models import Models, ServerFacts
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.app import create_app_of, serve
from corepipe.serving.config import ServerConfig
from corepipe.serving.supervision.engine_process import EngineError
from corepipe.version import __version__

if TYPE_CHECKING:
    from corepipe.cli.start.fleet_client import AnnouncedFleet
    from corepipe.serving.api.cassettes.server_cassettes import ServerCassettes


def launch(start: PreparedServer) -> None:
    """Serves until a signal: each of these models, at the port and with the keys and limits of the first.

    Raises UserError for what cannot be served, Exit where an engine dies loading.  The engines load behind
    the open port.
    """
    server, listeners = start.server, list(start.listeners)
    cassettes = _cassettes(server)
    urls, common = urls_of(listeners, server), [*warnings_of(server), *_of_cassettes(server, cassettes)]
    names = [one.name for one in start.found] if len(start.found) > 1 else []
    said = [Announcement(one.name, names, urls, common, server.verbose) for one in start.found]
    fixed = [_service(*one) for one in zip(_with_shares(start.found), said, strict=True)]
    models = Models(fixed, _pool(start, fixed), ServerFacts(__version__, start.engine, server.strict))
    app = create_app_of(models, server, cassettes)
    if not fixed:
        for line in [*common, *on_demand_lines(server, urls)]:
            errors().print(line)
    try:
        with ExitStack() as stack:
            for one in start.found:
                stack.enter_context(cache.in_use(one.path))
                guesses = one.resolved.speculative_config
                if guesses is not None and guesses.draft_path is not None:
                    stack.enter_context(cache.in_use(guesses.draft_path))
            uvloop.run(serve(app, server, listeners))
    except EngineError as error:  # the engine's own message is on stderr already
        errors().print(f"corepipe: {error}")
        raise typer.Exit(1) from error


def _pool(start: PreparedServer, fixed: Sequence[Service]) -> ModelPool | None:
    """Makes the pool of a server whose models may sleep or leave.  Raises UserError for a wrong directory."""
    server = start.server
    limits = limits_of(server, start.engine)
    if limits is None:
        return None
    if not server.models_dirs:
        return ModelPool(limits, fixed, wait_seconds=server.max_queue_seconds)
    from corepipe.cli.start.on_demand import DirectoryModels, room_beside  # noqa: PLC0415 -- loads what engines are made of

    if start.engine.lora_slots and not fixed:
        flag = lora_flag(start.engine)
        raise UserError(f"{flag}: LoRA adapters are for one model: name it, as MODEL", "enable_lora")
    source = DirectoryModels(start.engine, server)
    limits = replace(limits, nbytes=room_beside(start.found))
    return ModelPool(limits, fixed, source, server.max_queue_seconds)


def _with_shares(found: Sequence[ResolvedModel]) -> Sequence[ResolvedModel]:
    """Gives each of several models its part of the device and of the host.  Raises UserError."""
    if len(found) <= 1:
        return found
    from corepipe.cli.start.shares import with_shares  # noqa: PLC0415 -- loads what engines are made of

    return with_shares(found)


def _service(one: ResolvedModel, said: Announcement) -> Service:
    """Makes the service of a model: its tokenizer, and its engine, which is not started yet."""
    model, template = registry.load(one.path), one.server.chat_template
    tokenizer = tokenizer_of(one.path, model, template)
    client, task = _client(one, said), model.task(one.engine.task)
    with suppress(UserError):  # the engine reads them, and says what is wrong
        client.told.details += filter(None, [of_weights(model, one.engine.format)])
    service = Service(client, tokenizer, one.engine, one.server, __version__, task)
    service.observer.lateness.warn = lambda line: errors().print(f"corepipe: {line}")
    if task.task is Task.GENERATE:
        client.told.details.append(service.dialect.summary())
        client.told.notes += filter(None, [service.dialect.note])
    return service


def _cassettes(server: ServerConfig) -> ServerCassettes | None:
    """Opens the cassettes, where exchanges are recorded or replayed.  Raises UserError."""
    if server.record is None and server.replay is None:
        return None
    from corepipe.serving.api.cassettes.server_cassettes import ServerCassettes  # noqa: PLC0415 -- who has no cassettes does without

    return ServerCassettes(server)


def _of_cassettes(server: ServerConfig, cassettes: ServerCassettes | None) -> list[str]:
    """Returns lines on what is replayed, and where exchanges are recorded."""
    said = []
    if cassettes is not None and cassettes.library is not None:
        said.append(f"replaying {len(cassettes.library)} recorded exchanges from {server.replay}")
    if (folder := server.recorded_into[0]) is not None:
        said.append(f"recording exchanges into {folder}")
    return said


def _client(one: ResolvedModel, said: Announcement) -> AnnouncedClient | AnnouncedFleet:
    """Makes the client of an engine on this machine, or of engines on hosts of a fleet.  Raises UserError."""
    server = one.server
    if server.fleet is None:
        return AnnouncedClient(one.resolved, said, server.max_queue_seconds, one.process)
    from corepipe.cli.start.fleet_client import AnnouncedFleet  # noqa: PLC0415 -- who has no fleet does without

    return AnnouncedFleet.of(one.engine, said, server)
