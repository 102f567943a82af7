"""`--also NAME=PATH[,OPTION=VALUE...]`: further models of a server, from text to settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from corepipe.cli.flags.settings import configured
from corepipe.engine.config import EngineConfig
from corepipe.engine.flag import flag_of, flags_in
from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig

COMMON = ("instance", "lnc", "clock", "time_scale", "seed", "cache_dir")
"""Settings of the first model that hold for all: those of the emulated device and its time."""

OWN = {
    flag_of(config, name).removeprefix("--"): name
    for config in (EngineConfig, ServerConfig)
    for name, flag in flags_in(config).items()
    if flag.also
}
"""Options of one model, which may follow its path, and their settings."""

ModelConfigs = tuple[EngineConfig, ServerConfig]
"""A model, and the server's settings with those that are the model's own."""


def also_configs(texts: Iterable[str], engine: EngineConfig, server: ServerConfig) -> list[ModelConfigs]:
    """Reads the models that `--also` adds to that of `engine`.  Raises UserError that names the model."""
    taken, configs = set(server.served_model_names), []
    for text in texts:
        name, own = _read(text, taken)
        taken.add(name)
        configs.append(_configs(name, own, engine, server))
    return configs


def _read(text: str, taken: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """Returns a model's name, and its options with its path as `model`."""
    name, _, rest = text.partition("=")
    path, *parts = rest.split(",")
    if not name or not path:
        raise _wrong(f"{text}: give NAME=PATH, and options after a comma, as bert=/models/bert,dtype=fp32")
    if name in taken:
        raise _wrong(f"{text}: there is a model of the name {name} already; give each a name of its own")
    own = {"model": path}
    for part in parts:
        option, equals, value = part.partition("=")
        if option not in OWN:
            raise _wrong(f"{name}: {option or part!r} is no option of a model; there are {', '.join(OWN)}")
        if not equals or not value or option.replace("-", "_") in own:
            raise _wrong(f"{name}: {part}: give each option once, as {option}=VALUE")
        own[option.replace("-", "_")] = value
    return name, own


def _configs(name: str, own: Mapping[str, str], engine: EngineConfig, server: ServerConfig) -> ModelConfigs:
    """Returns the configurations of a further model: its options on the device and server of the first."""

    def spelled(setting: str) -> str:
        config = EngineConfig if setting in EngineConfig.model_fields else ServerConfig
        return f"--also {name}: {flag_of(config, setting).removeprefix('--')}"

    shared = {setting: getattr(engine, setting) for setting in COMMON}
    ours = configured(ServerConfig, own, spelled)
    chosen = {setting: getattr(ours, setting) for setting in OWN.values() if hasattr(ours, setting)}
    deployed = configured(EngineConfig, own, spelled, **shared)
    return deployed, server.model_copy(update={**chosen, "served_model_names": (name,)})


def _wrong(message: str) -> UserError:
    return UserError(f"--also {message}", "also")
