"""From the flags of a command to a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from corepipe.engine.config import Config, validated
from corepipe.engine.flag import flag_of, flags_in
from corepipe.errors import UserError, why


def parameter_of(config: type[BaseModel], setting: str) -> str:
    """Returns the name that the flag of a setting has in a command's parameters, such as "api_key"."""
    return flag_of(config, setting).removeprefix("--").replace("-", "_").lower()


def settings_of(config: type[BaseModel]) -> dict[str, str]:
    """Returns the names of a command's parameters, and the settings that they are."""
    return {parameter_of(config, setting): setting for setting in flags_in(config)}


def configured(
    config: type[Config],
    given: Mapping[str, object],
    spell: Callable[[str], str] | None = None,
    **fields: object,
) -> Config:
    """Returns the configuration that flags set; what is left out (None) is left to the field's default.

    given: the values by the names of a command's parameters.  spell: how an error names a field, by default
    as its flag.  fields: values of further fields.  Raises UserError for a value that is wrong and for a file
    that cannot be read.
    """
    spelled = spell or partial(flag_of, config)
    return validated(config, {**fields, **_fields(config, given, spelled)}, spelled)


def _fields(
    config: type[BaseModel], given: Mapping[str, object], spell: Callable[[str], str]
) -> dict[str, object]:
    """Returns the fields that are given: repeatable flags as tuples, the text of files that flags name."""
    fields: dict[str, object] = {}
    for setting, flag in flags_in(config).items():
        value = given.get(parameter_of(config, setting))
        if value is None:
            continue
        if flag.file:
            value = _text_of(Path(str(value)), spell(setting), setting)
        fields[setting] = tuple(value) if isinstance(value, list) else value
    return fields


def _text_of(path: Path, flag: str, setting: str) -> str:
    """Returns the text of a file that `flag` names.  Raises UserError."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{flag} {path}: {why(error)}", setting) from error
