"""`corepipe serve`: an OpenAI-compatible server over emulated NeuronCores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from corepipe import signals
from corepipe.cli.flags.options import option
from corepipe.engine.flag import SERVER
from corepipe.engine.process.stderr import write_without_waiting
from corepipe.imports import uncollected
from corepipe.models import hub

Also = Annotated[
    list[str] | None,
    option(
        "--also",
        help="A further model with options of its own, such as NAME=PATH,dtype=fp32,threads=2 (repeatable).",
        panel=SERVER,
    ),
]


def setting_flags() -> list[Any]:
    """Returns the flags that are fields of the server's and the engine's configuration."""
    with uncollected():  # heavy: the help of all commands does without
        from corepipe.cli.flags.fields import parameters, served  # noqa: PLC0415
        from corepipe.engine.config import EngineConfig  # noqa: PLC0415
        from corepipe.serving.config import ServerConfig  # noqa: PLC0415
    return parameters([*served(ServerConfig), *served(EngineConfig)])


def serve(ctx: typer.Context, also: Also = None) -> None:
    """Serve MODEL at an OpenAI-compatible endpoint, on emulated NeuronCores.

    Without MODEL it serves SmolLM2-135M-Instruct, which it downloads once (98 MB).
    """
    signals.ignore(signals.ORDERS)  # until there is something to reload, and a state
    write_without_waiting()
    with uncollected():  # heavy: the other commands do without
        from corepipe.cli.flags.also import also_configs  # noqa: PLC0415
        from corepipe.cli.flags.settings import configured  # noqa: PLC0415
        from corepipe.engine.config import EngineConfig  # noqa: PLC0415
        from corepipe.serving.config import ServerConfig  # noqa: PLC0415

    given = _with_model(ctx.params)
    server = configured(ServerConfig, given)
    engine = configured(EngineConfig, given)
    others = also_configs(also or (), engine, server)
    if server.replays_alone:
        with uncollected():
            from corepipe.cli.start.replay import replay as answer_again  # noqa: PLC0415 -- a model takes seconds
        answer_again(engine, server)
    else:
        from corepipe.cli.start.starting import starting  # noqa: PLC0415

        with starting([(engine, server), *others]) as start:
            with uncollected():
                from corepipe.cli.start.launch import launch  # noqa: PLC0415 -- half of the time of a start
            launch(start)


def _with_model(flags: Mapping[str, Any]) -> dict[str, object]:
    """Returns the flags with the default model, and its path as its name, where these are left out."""
    path = hub.DEFAULT_MODEL if flags["model"] is None else flags["model"]
    names = flags["served_model_name"] or [path]
    if flags["model"] is None and flags["replay"] is not None and flags["replay_else"] == "refuse":
        names = flags["served_model_name"]  # else those that are recorded
    return {**flags, "model": path, "served_model_name": names}
