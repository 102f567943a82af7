"""Flags of commands, made from the fields of configurations as typer's parameters.

A command names the fields; their flags, types, defaults, bounds and help are those of the fields, unless the
command changes them.  Configurations take a tenth of a second to import: a command does that in its function
`setting_flags`, which `Command` of `corepipe.cli.app` calls when the flags are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from corepipe.cli.flags.settings import parameter_of
from corepipe.engine.config import EngineConfig
from corepipe.engine.flag import Flag, flag_in, flag_names, flags_in


@dataclass(frozen=True, slots=True)
class Use:
    """A field as a flag of one command, with the settings that differ there; None: as in the field.

    choices: a Literal.  several: the flag is repeatable.  unset: it is None where it is left out.
    """

    config: type[BaseModel]
    field: str
    help: str | None = None
    panel: str | None = None
    default: object = None
    choices: Any = None
    several: bool = False
    unset: bool = False


def served(config: type[BaseModel]) -> list[Use]:
    """Returns the flags of `corepipe serve` in a configuration."""
    return [Use(config, name, choices=flag.choices) for name, flag in flags_in(config).items() if flag.served]


def of_engine(*fields: str) -> list[Use]:
    """Returns fields of EngineConfig as they are."""
    return [Use(EngineConfig, field) for field in fields]


def drafts(text: str, panel: str | None = None) -> Use:
    """Returns `--speculative-config` of a command that computes no tokens."""
    return Use(EngineConfig, "speculative_config", text, panel)


DEGREES = ("pipeline", "tensor", "data", "expert")
TIMED_FORMAT = Use(
    EngineConfig,
    "format",
    f"{EngineConfig.model_fields['format'].description} fp8, mxfp8, mxfp4: formats that devices alone have.",
    default="bf16",
)
"""`--dtype` of commands that time what a server need not compute."""
ASSUMED_DRAFTS = drafts(
    "Speculative decoding: several tokens are drafted for a step, and how many of them are accepted is "
    "assumed. JSON with vLLM's names: method, model, num_speculative_tokens, rejection_sample_method "
    "(synthetic), synthetic_acceptance_rates."
)


def parameters(uses: Sequence[Use]) -> list[Any]:
    """Returns click's parameters for these flags, as typer makes them of a function's signature."""

    def command(**_flags: object) -> None:
        """Stands for the function whose signature it is given."""

    declared = [_declared(use) for use in uses]
    command.__signature__ = Signature(declared)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in declared}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    made: Any = get_command(app)
    return list(made.params)


def _declared(use: Use) -> Parameter:
    """Returns a field as a parameter of a function, annotated with typer's option.  Raises KeyError where the
    field is no flag."""
    field = use.config.model_fields[use.field]
    flag = flag_in(field)
    if flag is None:
        raise KeyError(use.field)
    kind = _kind(field, flag, use)
    several = list[kind] if use.several else kind  # type: ignore[valid-type]
    text = (use.help or field.description or "").replace("[", "\\[")  # else rich takes it for markup
    option: Any = typer.Argument(help=text)
    if not flag.argument:
        option = typer.Option(
            *flag_names(use.config, use.field),
            help=text,
            rich_help_panel=use.panel or flag.panel,
            metavar=flag.metavar,
            envvar=flag.envvar,
            **_bounds(field, kind),
        )
    return Parameter(
        parameter_of(use.config, use.field),
        Parameter.KEYWORD_ONLY,
        default=_default(field, use, kind),
        annotation=Annotated[several | None, option],
    )


def _kind(field: FieldInfo, flag: Flag, use: Use) -> Any:
    """Returns what typer reads a value as: a plain type, a list of one, or an enumeration of the choices."""
    if flag.file:
        return Path
    if flag.metavar is not None:
        return str
    kind = use.choices or _without_none(field.annotation)
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]]  # type: ignore[misc]
    if get_origin(kind) is not Literal:
        return kind
    words: tuple[Any, ...] = get_args(kind)
    return int if isinstance(words[0], int) else StrEnum(use.field, {word: word for word in words})


def _without_none(annotation: Any) -> Any:
    """Returns the type of a value that is given."""
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    (kind,) = (one for one in get_args(annotation) if one is not type(None))
    return kind


def _default(field: FieldInfo, use: Use, kind: Any) -> Any:
    """Returns the value where the flag is left out; None stands for an empty list and an empty text."""
    value: Any = use.default if use.default is not None else field.get_default()
    if use.several or use.unset or field.is_required() or value in ((), None):
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
