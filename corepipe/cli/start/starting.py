"""The first steps of `corepipe serve`, before it imports a server: engines' processes, ports, models' files.

An engine's imports and its load take as long as the server's own imports: they go on beside these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import typer

from corepipe.cli.output.common import ReportProgress, errors, progress_bar
from corepipe.engine.assembly.host_limits import host_memory
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models import hub
from corepipe.serving.config import ServerConfig
from corepipe.serving.supervision.engine_process import EngineError, EngineProcess


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model whose files are here.  engine: as it was asked for; resolved: with the model's path, and its
    share of the device.

    process: of its engine, where that is on this host.
    """

    path: Path
    engine: EngineConfig
    resolved: EngineConfig
    server: ServerConfig
    process: EngineProcess | None

    @property
    def name(self) -> str:
        return self.server.served_model_names[0]


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """A server's models and sockets.  listeners: those of all ports, the public one first.  engine: the
    settings of models that are loaded on demand.
    """

    found: Sequence[ResolvedModel]
    listeners: Sequence[socket]
    engine: EngineConfig
    server: ServerConfig


@contextmanager
def starting(
    asked: Sequence[tuple[EngineConfig, ServerConfig]],
    engine: EngineConfig,
    server: ServerConfig,
    *,
    listening: bool = True,
) -> Iterator[PreparedServer]:
    """Starts an engine's process for each model (but in a fleet), opens the ports and fetches the models.

    The only model loads from now on; of several, the share of each is to be known first.  Processes end with
    the context.  listening: False opens no port.  Raises UserError for what cannot be had.
    """
    _check_fleet(asked)
    _check_kernels(engine, server)
    with ExitStack() as stack:
        processes = [stack.enter_context(_made()) if server.fleet is None else None for _ in asked]
        from corepipe.cli.start.ports import open_ports  # noqa: PLC0415 -- the engine imports while this does

        listeners = (
            open_ports(server) if listening else []
        )  # before anything is fetched: a port in use is known at once
        _warn_of_memory(asked)
        found = [_find(*one, process) for one, process in zip(asked, processes, strict=True)]
        if len(found) == 1 and found[0].process is not None:
            found[0].process.tell(found[0].resolved)
        yield PreparedServer(found, listeners, engine, server)


def _warn_of_memory(asked: Sequence[tuple[EngineConfig, ServerConfig]]) -> None:
    """Warns of KV caches that are larger than the memory: they take it as they fill, so it lacks much
    later."""
    wanted, there = sum(engine.kv_cache_bytes or 0 for engine, _ in asked), host_memory()
    if wanted > there and all(server.fleet is None for _, server in asked):
        errors().print(
            f"corepipe: --kv-cache-memory-bytes: {wanted / 2**30:,.1f} GiB are more "
            f"than the {there / 2**30:,.1f} GiB of this machine: it may run out of memory as the cache fills"
        )


def _made() -> EngineProcess:
    try:
        return EngineProcess()
    except EngineError as error:
        errors().print(f"corepipe: {error}")
        raise typer.Exit(1) from error


def _find(engine: EngineConfig, server: ServerConfig, process: EngineProcess | None) -> ResolvedModel:
    """Fetches a model where it is not here yet.  Raises UserError."""
    with progress_bar(errors()) as report:
        path = hub.resolve(engine.model, report)
        here = engine if engine.speculative_config is None else _with_draft(engine, report)
        if server.verify:
            _verify(path, here, report)
    return ResolvedModel(path, engine, here.model_copy(update={"model": str(path)}), server, process)


def _with_draft(engine: EngineConfig, report: ReportProgress) -> EngineConfig:
    from corepipe.engine.assembly.draft_host import with_draft_here  # noqa: PLC0415 -- loads executors

    return with_draft_here(engine, report)


def _verify(path: Path, here: EngineConfig, report: ReportProgress) -> None:
    """Checks the hashes of the model's files, and of its draft model's.  Raises UserError."""
    from corepipe.engine.assembly.draft_host import draft_path  # noqa: PLC0415
    from corepipe.models.checkpoints import integrity  # noqa: PLC0415 -- reads all formats

    integrity.verify(path, report)
    if (draft := draft_path(here)) is not None:
        integrity.verify(draft, report)


def lora_flag(engine: EngineConfig) -> str:
    """Returns the flag that asks for LoRA adapters."""
    if engine.lora_modules:
        return "--lora-modules"
    return "--lora-dir" if engine.lora_dir else "--enable-lora"


def _check_kernels(engine: EngineConfig, server: ServerConfig) -> None:
    """Raises UserError where a request, or another host, would have the user's kernels run."""
    if engine.kernels and server.models_dirs:
        raise UserError("--kernel: not with --models-dir, whose models are loaded for requests", "kernels")
    if engine.kernels and server.fleet is not None:
        raise UserError("--kernel: not for a fleet, whose hosts have no such files", "kernels")


def _check_fleet(asked: Sequence[tuple[EngineConfig, ServerConfig]]) -> None:
    """Raises UserError for flags that a fleet does not support."""
    if not asked or asked[0][1].fleet is None:
        return
    engine, _ = asked[0]
    if len(asked) > 1:
        raise UserError("--also: a fleet serves one model", "also")
    if engine.lora_slots:
        raise UserError(f"{lora_flag(engine)}: a fleet serves no LoRA adapters", "enable_lora")
    if engine.kv_events_config is not None:
        message = "--kv-events-config: not for a fleet, as each of its engines publishes only its own cache"
        raise UserError(message, "kv_events_config")
