"""Flags of commands, declared as parameters of a function, of which typer makes click's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from corepipe.errors import UserError


class Emit(StrEnum):
    HELM = "helm"
    VLLM_NEURON = "vllm-neuron"


LOCAL_SERVER = "http://127.0.0.1:8000"
"""URL of a server that was started without flags."""

REQUIRED: Any = Parameter.empty
"""The default of a flag or an argument that must be given."""


def option(
    names: str, kind: Any, text: str, default: Any = None, *, name: str = "", **more: Any
) -> Parameter:
    """Returns a flag; without a default it is None where it is left out, or False where it has no value.

    names: the flag and its synonyms, separated by blanks.  kind: the type of a value.  text: the help.  name:
    the parameter's name, if it is not the flag's, such as "api_key".  more: settings of typer, such as
    bounds; panel: the heading of the help that it stands under.
    """
    spelled, panel = names.split(), more.pop("panel", None)
    default = False if kind is bool and default is None else default
    own = name or spelled[0].partition("/")[0].removeprefix("--").replace("-", "_")
    return _parameter(
        own, kind, default, typer.Option(*spelled, help=escaped(text), rich_help_panel=panel, **more)
    )


def argument(name: str, kind: Any, text: str, default: Any = REQUIRED, **more: Any) -> Parameter:
    """Returns an argument; its settings are those of `option`."""
    return _parameter(name, kind, default, typer.Argument(help=escaped(text), **more))


def escaped(text: str) -> str:
    """Returns a help in which rich takes no bracket for markup."""
    return re.sub(r"\[(?=\w)", r"\\[", text)


def _parameter(name: str, kind: Any, default: Any, info: Any) -> Parameter:
    wanted = kind if default is REQUIRED else kind | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[wanted, info])


MODEL = argument("model", str, "A directory, a config.json, a .gguf file, or a name such as llama-3.1-8b.")
SERVER_URL = argument("url", str, "URL of a running server.", LOCAL_SERVER)
API_KEY = option("--api-key", str, "API key of the server.", envvar="COREPIPE_API_KEY")


def as_json(panel: str | None = None) -> Parameter:
    """Returns `--json`."""
    return option("--json", bool, "Print the result as JSON.", panel=panel)


def rows(text: str) -> Parameter:
    """Returns the argument that names a CSV file."""
    return argument("rows", Path, text, dir_okay=False)


def parameters(declared: Sequence[Parameter]) -> list[Any]:
    """Returns click's parameters, the arguments first, as typer makes them of a function's signature."""

    def command(**_flags: object) -> None:
        """Stands for the function whose signature it is given."""

    command.__signature__ = Signature(declared)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in declared}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    made: Any = get_command(app)
    return sorted(made.params, key=lambda parameter: parameter.param_type_name != "argument")


class Given(dict[str, Any]):
    """The values of a command's flags, by the names of their parameters, and their defaults."""

    def __init__(self, values: dict[str, Any], defaults: dict[str, Any]) -> None:
        super().__init__(values)
        self._defaults = defaults

    def changed(self, name: str) -> bool:
        """Tells whether a flag has another value than its default."""
        value, default = self[name], self._defaults[name]
        is_left_out = default is None and isinstance(value, list | tuple) and not value  # and repeatable
        return bool(value != default) and not is_left_out

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raises UserError, which says why, for the first of these flags that is changed."""
        for name in filter(self.changed, names):
            raise UserError(f"--{name.replace('_', '-')} {why}", name)

    def replaced(self, **values: Any) -> Given:
        """Returns the flags with other values for some of them."""
        return Given({**self, **values}, self._defaults)
