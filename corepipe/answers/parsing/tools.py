"""The tools that a client offers, and which of them may or must be called: for HTTP and `LLM` alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corepipe.errors import UserError, shown
from corepipe.structured.schemas import deeper_than

MAX_TOOLS = 512
MAX_SCHEMA_BYTES = 131_072
MAX_DEPTH = 48
"""The most objects and lists inside each other: templates write nothing deeper."""

MAX_NAME = 128
"""The most characters of a tool's name: Anthropic's limit; OpenAI's is 64."""
_NAME = rf"^[A-Za-z0-9_.-]{{1,{MAX_NAME}}}$"
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


class FunctionDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name, description and arguments of a client's function."""

    name: Annotated[str, Meta(pattern=_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.parameters or _NO_PARAMETERS


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A choice by which this tool must be called."""

    function: FunctionName


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    """A choice by which no other tools may be called."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that a request offers.

    tools: all of them, as the template presents them to the model.  callable: those that may be called.
    forced: one of these must be called.  named: the client named it.  single: at most one call.
    """

    tools: tuple[FunctionDefinition, ...]
    callable: tuple[FunctionDefinition, ...]
    forced: bool = False
    named: bool = False
    single: bool = False

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        return {one.name: one.schema for one in self.callable}

    @property
    def arguments(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """The name of each tool that may be called, and the path and the schema of its arguments."""
        return [
            (one.name, parameters_of(at), {"type": "object", **one.schema})
            for at, one in enumerate(self.tools)
            if one in self.callable
        ]

    @property
    def strict(self) -> bool:
        """Tells whether arguments must fit their schemas even if no call is forced."""
        return any(one.strict for one in self.callable)

    def described(self) -> list[dict[str, Any]]:
        """Returns the tools as templates take them."""
        return [{"type": "function", "function": _described(one)} for one in self.tools]


def parameters_of(at: int) -> str:
    """Returns the path of the arguments' schema of tool number `at` in a request."""
    return f"tools[{at}].function.parameters"


def offered(
    tools: Sequence[Tool] | None, choice: ToolChoice | None = None, *, parallel: bool = True
) -> OfferedTools | None:
    """Returns the tools that a request offers; None where it offers none.

    Raises UserError, which names the field with its path, for tools that cannot be told apart or are too
    large, and for a choice of none of them.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise UserError("tool_choice needs tools.", "tool_choice")
        return None
    _check(tools)
    functions = tuple(one.function for one in tools)
    single = not parallel
    if choice == "none":
        return OfferedTools(functions, ())
    if isinstance(choice, NamedChoice):
        chosen = _chosen(functions, [choice], "tool_choice.function.name")
        return OfferedTools(functions, chosen, forced=True, named=True, single=True)
    if isinstance(choice, AllowedChoice):
        allowed = choice.allowed_tools
        chosen = _chosen(functions, allowed.tools, "tool_choice.allowed_tools.tools[{}].function.name")
        return OfferedTools(functions, chosen, forced=allowed.mode == "required", single=single)
    return OfferedTools(functions, functions, forced=choice == "required", single=single)


def offered_by(
    tools: Sequence[Mapping[str, Any]],
    choice: str | Mapping[str, Any] | None = None,
    *,
    parallel: bool = True,
) -> OfferedTools | None:
    """Does what `offered` does, from plain JSON values."""
    listed = _converted(list(tools), list[Tool], "tools")
    chosen = None if choice is None else _converted(choice, ToolChoice, "tool_choice")
    return offered(listed, chosen, parallel=parallel)


def _converted(value: object, kind: object, field: str) -> Any:  # noqa: ANN401 -- as msgspec has it
    """Converts a JSON value.  Raises UserError, which names the field with its path."""
    try:
        return msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        where = field + path.rstrip("`")
        raise UserError(f"{where}: {text}", where) from error


def _described(one: FunctionDefinition) -> dict[str, Any]:
    said = {"description": one.description} if one.description is not None else {}
    return {"name": one.name, **said, "parameters": one.schema}


def _chosen(
    functions: Sequence[FunctionDefinition], choices: Sequence[NamedChoice], where: str
) -> tuple[FunctionDefinition, ...]:
    names = [one.function.name for one in choices]
    known = {one.name for one in functions}
    for at, name in enumerate(names):
        if name not in known:
            raise UserError(f"{where.format(at)}: {shown(name)} is not one of the tools.", where.format(at))
    return tuple(one for one in functions if one.name in names)


def _check(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        raise UserError(f"tools: at most {MAX_TOOLS} are taken, not {len(tools)}.", "tools")
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        function, where = tool.function, f"tools[{at}].function"
        if not re.fullmatch(_NAME.removesuffix("$"), function.name):
            message = f"{where}.name: a name has up to {MAX_NAME} of A-Z a-z 0-9 _ . -"
            raise UserError(message, f"{where}.name")
        if function.name in seen:
            raise UserError(f"{where}.name: {shown(function.name)} is used twice.", f"{where}.name")
        seen.add(function.name)
        _check_schema(function.schema, parameters_of(at))


def _check_schema(schema: Mapping[str, Any], where: str) -> None:
    if schema.get("type", "object") != "object":
        raise UserError(f"{where}.type: arguments must be an object.", f"{where}.type")
    if deeper_than(MAX_DEPTH, schema):
        raise UserError(f"{where}: nested deeper than {MAX_DEPTH}.", where)
    size = len(msgspec.json.encode(schema))
    if size > MAX_SCHEMA_BYTES:
        raise UserError(f"{where}: {size} bytes are more than {MAX_SCHEMA_BYTES}.", where)
