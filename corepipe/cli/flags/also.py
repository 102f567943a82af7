"""`--also NAME=PATH[,OPTION=VALUE...]`: further models of a server, from text to settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from corepipe.cli.flags.settings import config_fields, flag_of, text_of
from corepipe.engine.config import EngineConfig, validated
from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig

COMMON = ("instance", "lnc", "clock", "time_scale", "seed", "cache_dir")
"""Settings of the first model that are the server's: those of the emulated device and its time."""

OWN = (
    "task", "dtype", "bits", "max-model-len", "max-num-seqs", "max-num-batched-tokens", "max-batch-delay",
    "mode", "pipeline", "tensor", "data", "expert",
    "timing-model", "profile", "policy", "block-size", "num-blocks",
    "kv-cache-dtype", "kv-cache-memory-bytes", "enable-prefix-caching", "max-num-queued-reqs",
    "max-num-queued-tokens", "threads", "chat-template", "tool-call-parser", "reasoning-parser",
)  # fmt: skip
"""Flags that are of one model: each may stand behind its path."""

Asked = tuple[EngineConfig, ServerConfig]
"""A model, and the server's settings with what of them is its own."""


def also_asked(texts: Iterable[str], engine: EngineConfig, server: ServerConfig) -> list[Asked]:
    """What `--also` asks for beside the model of `engine`.  Raises UserError that names the flag's model."""
    taken, asked = set(server.served_model_names), []
    for text in texts:
        name, own = _read(text, taken)
        taken.add(name)
        asked.append(_settled(name, own, engine, server))
    return asked


def _read(text: str, taken: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """Its name, and its options with its path as `model`."""
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


def _settled(name: str, own: Mapping[str, str], engine: EngineConfig, server: ServerConfig) -> Asked:
    def spelled(setting: str) -> str:
        return f"--also {name}: {flag_of(setting).removeprefix('--')}"

    given: dict[str, object] = {**own}
    if "chat_template" in own:
        given["chat_template"] = text_of(Path(own["chat_template"]), f"--also {name}: chat-template")
    shared = {setting: getattr(engine, setting) for setting in COMMON}
    mine = config_fields(ServerConfig, given)
    chosen = {"chat_template": None, "tool_call_parser": "auto", "reasoning_parser": "auto", **mine}
    deployed = validated(EngineConfig, {**shared, **config_fields(EngineConfig, given)}, spelled)
    return deployed, server.model_copy(update={**chosen, "served_model_names": (name,)})


def _wrong(message: str) -> UserError:
    return UserError(f"--also {message}", "also")
