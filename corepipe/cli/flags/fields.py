"""Flags of commands that are fields of configurations.

A command names the fields; their flags, types, defaults, bounds and help are those of the fields, unless the
command changes them.  Configurations take a tenth of a second to import: a command does that in its function
`flags`, which `Command` of `corepipe.cli.app` calls when the flags are needed.
"""

from __future__ import annotations

from enum import StrEnum
from inspect import Parameter
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from corepipe.cli.flags.options import argument, option
from corepipe.cli.flags.settings import parameter_of
from corepipe.engine.config import EngineConfig
from corepipe.engine.flag import Flag, flag_in, flag_names, flags_in


def flag(
    config: type[BaseModel],
    field: str,
    text: str | None = None,
    panel: str | None = None,
    *,
    default: object = None,
    choices: Any = None,
    several: bool = False,
    unset: bool = False,
) -> Parameter:
    """Returns a field as a flag of one command, with the settings that differ there; None: as in the field.

    text: the help.  choices: a Literal.  several: the flag is repeatable.  unset: it is None where it is left
    out.  Raises KeyError where the field is no flag.
    """
    known = config.model_fields[field]
    mark = flag_in(known)
    if mark is None:
        raise KeyError(field)
    kind = _kind(field, known, mark, choices)
    absent = None if several or unset else _default(known, default, kind)
    wanted, told = list[kind] if several else kind, text or known.description or ""  # type: ignore[valid-type]
    name = parameter_of(config, field)
    if mark.argument:
        return argument(name, wanted, told, absent)
    shown = {"panel": panel or mark.panel, "metavar": mark.metavar, "envvar": mark.envvar}
    names = " ".join(flag_names(config, field))
    return option(names, wanted, told, absent, name=name, **shown, **_bounds(known, kind))


def served(config: type[BaseModel]) -> list[Parameter]:
    """Returns the flags of `corepipe serve` in a configuration."""
    return [
        flag(config, name, choices=mark.choices) for name, mark in flags_in(config).items() if mark.served
    ]


def of_engine(*fields: str) -> list[Parameter]:
    """Returns fields of EngineConfig as they are."""
    return [flag(EngineConfig, field) for field in fields]


def drafts(text: str, panel: str | None = None) -> Parameter:
    """Returns `--speculative-config` of a command that computes no tokens."""
    return flag(EngineConfig, "speculative_config", text, panel)


DEGREES = ("pipeline", "tensor", "data", "expert")


def timed_format() -> Parameter:
    """Returns `--dtype` of commands that time what a server need not compute."""
    text = EngineConfig.model_fields["format"].description
    more = "fp8, mxfp8, mxfp4: formats that devices alone have."
    return flag(EngineConfig, "format", f"{text} {more}", default="bf16")


def _kind(name: str, field: FieldInfo, mark: Flag, choices: Any) -> Any:
    """Returns what typer reads a value as: a plain type, a list of one, or an enumeration of the choices."""
    if mark.file:
        return Path
    if mark.metavar is not None and field.annotation != tuple[str, ...]:
        return str
    kind = choices or _without_none(field.annotation)
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]]  # type: ignore[misc]
    if get_origin(kind) is not Literal:
        return kind
    words: tuple[Any, ...] = get_args(kind)
    return int if isinstance(words[0], int) else StrEnum(name, {word: word for word in words})


def _without_none(annotation: Any) -> Any:
    """Returns the type of a value that is given."""
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    (kind,) = (one for one in get_args(annotation) if one is not type(None))
    return kind


def _default(field: FieldInfo, default: object, kind: Any) -> Any:
    """Returns the value where the flag is left out; None stands for an empty list and an empty text."""
    value: Any = default if default is not None else field.get_default()
    if field.is_required() or value in ((), None):
        return None
    return kind(value) if isinstance(kind, type) and issubclass(kind, StrEnum) else value


def _bounds(field: FieldInfo, kind: Any) -> dict[str, Any]:
    """Returns the least and the most that typer lets pass; the field checks the other conditions."""
    if kind not in {int, float}:
        return {}
    return {
        name: getattr(mark, bound)
        for mark in field.metadata
        for name, bound in (("min", "ge"), ("max", "le"))
        if hasattr(mark, bound)
    }
