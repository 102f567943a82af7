"""Flags: the command line's settings for a field of a configuration, beside those of pydantic.

Type, default, bounds and help (the description) of a flag are those of its field.  The command line,
`--also`, the Helm chart's schema, docs/cli.md and the options of `LLM` are made from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # heavy
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

MODEL = "Model"
DEVICE = "Emulated device"
BATCHING = "Batching"
SERVER = "Server"


@dataclass(frozen=True, slots=True)
class Flag:
    """Marks a field as a flag of the command line: `Annotated[int, Flag(BATCHING)]`.

    panel: the heading under which the help lists it.  names: the flag and its synonyms, if they differ from
    the field's name.  metavar: the placeholder of the value in the help; the field's validator reads the
    text.  envvar: an environment variable that sets it as well.  file: the flag names a file, whose text is
    the value.  choices: a Literal of the values that `corepipe serve` takes, if the field takes more.
    argument: it is positional, without a name.  also: `--also` may set it for one model.  served:
    `corepipe serve` has it.  chart: the key of the Helm chart that sets it.
    """

    panel: str
    names: tuple[str, ...] = ()
    metavar: str | None = None
    envvar: str | None = None
    file: bool = False
    choices: Any = None
    argument: bool = False
    also: bool = False
    served: bool = True
    chart: str | None = None


def flag_in(field: FieldInfo) -> Flag | None:
    """Returns the Flag of a field, if it is one."""
    return next((mark for mark in field.metadata if isinstance(mark, Flag)), None)


def flags_in(config: type[BaseModel]) -> Mapping[str, Flag]:
    """Returns the flags of a configuration by the names of their fields, in the order of the fields."""
    found = {name: flag_in(field) for name, field in config.model_fields.items()}
    return {name: flag for name, flag in found.items() if flag is not None}


def flag_names(config: type[BaseModel], name: str) -> tuple[str, ...]:
    """Returns the flag of a field and its synonyms, such as ("--tensor", "--tensor-parallel-size")."""
    flag = flag_in(config.model_fields[name])
    return flag.names if flag is not None and flag.names else ("--" + name.replace("_", "-"),)


def flag_of(config: type[BaseModel], name: str) -> str:
    """Returns the flag of a field, such as "--tensor"."""
    return flag_names(config, name)[0].partition("/")[0]
