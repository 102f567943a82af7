"""The first steps of `corepipe serve`: from flags to configurations, and to a server or a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corepipe import signals
from corepipe.cli.flags.also import also_configs
from corepipe.cli.flags.settings import configured
from corepipe.engine.config import EngineConfig
from corepipe.engine.process.stderr import write_without_waiting
from corepipe.imports import uncollected
from corepipe.models import hub
from corepipe.serving.config import ServerConfig


def run(flags: Mapping[str, Any]) -> None:
    """Serves until a signal.  Raises UserError for flags and files that cannot be used."""
    signals.ignore(signals.ORDERS)  # until there is something to reload, and a state
    write_without_waiting()
    given = _with_model(flags)
    server = configured(ServerConfig, given)
    engine = configured(EngineConfig, {**given, "model": given["model"] or ""})
    others = also_configs(flags["also"] or (), engine, server)
    first = [] if given["model"] is None else [(engine, server)]
    if server.replays_alone:
        with uncollected():
            from corepipe.cli.start.replay import replay  # noqa: PLC0415 -- a model takes seconds
        replay(engine, server)
    else:
        from corepipe.cli.start.starting import starting  # noqa: PLC0415

        with starting([*first, *others], engine, server) as start:
            with uncollected():
                from corepipe.cli.start.launch import launch  # noqa: PLC0415 -- half of the time of a start
            launch(start)


def _with_model(flags: Mapping[str, Any]) -> dict[str, object]:
    """Returns the flags with the default model, and its path as its name, where these are left out.

    Where models are loaded on demand, none is the default.
    """
    if flags["model"] is None and flags["models_dir"]:
        return {**flags, "served_model_name": flags["served_model_name"] or []}
    path = hub.DEFAULT_MODEL if flags["model"] is None else flags["model"]
    names = flags["served_model_name"] or [path]
    if flags["model"] is None and flags["replay"] is not None and flags["replay_else"] == "refuse":
        names = flags["served_model_name"]  # else those that are recorded
    return {**flags, "model": path, "served_model_name": names}
