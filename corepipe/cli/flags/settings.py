"""From the flags of a command to the settings of a configuration, and back for what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from corepipe.errors import UserError, why

if TYPE_CHECKING:  # heavy
    from pydantic import BaseModel

SETTINGS = {
    "dtype": "format",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "enable_prefix_caching": "prefix_cache",
    "max_num_queued_reqs": "max_queued_requests",
    "max_num_queued_tokens": "max_queued_tokens",
    "api_key": "api_keys",
    "admin_api_key": "admin_api_keys",
    "allowed_origin": "allowed_origins",
    "served_model_name": "served_model_names",
}
"""Flags whose setting has another name."""


def config_fields(config: type[BaseModel], given: Mapping[str, object]) -> dict[str, object]:
    """Those of the flags that are settings of `config`; a repeatable flag is a tuple there."""
    settings = {SETTINGS.get(flag, flag): value for flag, value in given.items()}
    known = {name: value for name, value in settings.items() if name in config.model_fields}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


def flag_of(setting: str) -> str:
    flags = {name: flag for flag, name in SETTINGS.items()}
    return "--" + flags.get(setting, setting).replace("_", "-")


def text_of(path: Path | None, flag: str) -> str | None:
    """What a file holds that `flag` names; None where it names none.  Raises UserError."""
    if path is None:
        return None
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{flag} {path}: {why(error)}", flag.lstrip("-").replace("-", "_")) from error
