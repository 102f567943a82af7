"""The tools of a request as functions of a chat, and calls of these as calls of the client's tools.

A custom tool becomes a function with one string; a namespace (the tools of an MCP server) becomes functions
with qualified names.  Hosted tools, which run at OpenAI, are refused, or dropped if the server says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corepipe.answers.parsing.tools import (
    MAX_TOOLS,
    AllowedChoice,
    AllowedTools,
    FunctionDefinition,
    FunctionName,
    NamedChoice,
    Tool,
    ToolChoice,
)
from corepipe.serving.api.bodies.reading import explained
from corepipe.serving.api.bodies.values import convert
from corepipe.serving.api.http.errors import ApiError, echo, invalid

MAX_NAME = 64
INPUT = "input"
"""The argument of the function that stands for a custom tool."""
_ONE_STRING: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
HOSTED = (
    *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
    *("file_search", "computer", "computer_use_preview", "code_interpreter", "image_generation", "mcp"),
    *("local_shell", "shell", "apply_patch", "tool_search", "programmatic_tool_calling"),
)
"""The types of tools that OpenAI's servers, or its own models, have."""

Json = dict[str, Any]


class FunctionTool(msgspec.Struct, frozen=True):
    """A function of the client."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: Any = None
    defer_loading: bool | None = None


class CustomFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of a custom tool's input; a grammar is described to the model, and not enforced."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(msgspec.Struct, frozen=True):
    """A tool of the client whose input is a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None
    defer_loading: bool | None = None


class NamespaceTool(msgspec.Struct, frozen=True):
    """Tools of the client under a common name."""

    type: Literal["namespace"]
    name: str
    tools: Annotated[list[Json], Meta(max_length=MAX_TOOLS)]
    description: str | None = None


_KINDS: Mapping[str, type[msgspec.Struct]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    "namespace": NamespaceTool,
}


class CalledTool(msgspec.Struct, frozen=True):
    """A tool of the client, as its calls name it."""

    name: str
    namespace: str = ""
    custom: bool = False


class ChosenName(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A choice of one function."""

    name: str
    namespace: str = ""


class ChosenCustom(ChosenName, frozen=True, tag_field="type", tag="custom"):
    """A choice of one custom tool."""


class ChosenAllowed(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """A choice of some tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[Json], Meta(min_length=1, max_length=MAX_TOOLS)]


@dataclass(slots=True)
class ClientTools:
    """The tools of a request.

    functions: as those of a chat.  called: the client's tools by the names of the functions.  places: paths
    of the chat's tools, and where they are in the request.  ignored: paths without effect.  dropped: the
    hosted tools that were left out, by type.
    """

    functions: list[Tool] = field(default_factory=list)
    called: dict[str, CalledTool] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def names(self) -> dict[tuple[str, str], str]:
        """The names of the functions by the tools' namespaces and names."""
        return {(tool.namespace, tool.name): name for name, tool in self.called.items()}

    def add(self, tool: FunctionTool | CustomTool, namespace: str, about: str, place: str) -> None:
        """Adds a tool.  Raises ApiError for a second one of its name."""
        called = CalledTool(tool.name, namespace, isinstance(tool, CustomTool))
        name = qualified(namespace, tool.name)
        if name in self.called:
            raise invalid(f"{place}.name: {echo(tool.name)} is used twice.", f"{place}.name")
        where = f"tools[{len(self.functions)}]"
        self.places |= {f"{where}.function": place, where: place}
        self.functions.append(Tool("function", _function(tool, name, about)))
        self.called[name] = called

    def choice(self, wanted: str | Json | None, *, drop: bool) -> ToolChoice | None:
        """Returns a choice of tools as that of a chat.  Raises ApiError; `drop`: one of a hosted tool is
        left out."""
        if isinstance(wanted, str) or wanted is None:
            return None if not self.functions and self.dropped and wanted == "auto" else wanted  # type: ignore[return-value]
        if wanted.get("type") in HOSTED or wanted.get("type") not in ("function", "custom", "allowed_tools"):
            if drop and wanted.get("type") in HOSTED:
                self.ignored.append("tool_choice")
                return None
            raise _not_here("tool_choice", wanted.get("type"))
        chosen = _converted(wanted, ChosenName | ChosenCustom | ChosenAllowed, "tool_choice")
        if isinstance(chosen, ChosenName):
            return self._named(chosen, "tool_choice")
        names = [*self._allowed(chosen, drop=drop)]
        return AllowedChoice(AllowedTools(chosen.mode, names)) if names else "none"

    def _allowed(self, chosen: ChosenAllowed, *, drop: bool) -> Iterator[NamedChoice]:
        for at, one in enumerate(chosen.tools):
            place = f"tool_choice.tools[{at}]"
            if one.get("type") in HOSTED and drop:
                self.ignored.append("tool_choice.tools[]")
            elif one.get("type") not in ("function", "custom"):
                raise _not_here(place, one.get("type"))
            else:
                yield self._named(_converted(one, ChosenName | ChosenCustom, place), place)

    def _named(self, chosen: ChosenName, place: str) -> NamedChoice:
        """Returns the choice of a function, by its own name or by the qualified one."""
        name = self.names.get((chosen.namespace, chosen.name), chosen.name)
        if name not in self.called:
            raise invalid(f"{place}.name: {echo(chosen.name)} is not one of the tools.", f"{place}.name")
        return NamedChoice(FunctionName(name))


def read_tools(tools: Sequence[Json], *, drop: bool) -> ClientTools:
    """Reads the tools of a request; `drop`: hosted tools are left out, instead of refused.  Raises
    ApiError."""
    read = ClientTools()
    for at, tool in enumerate(tools):
        place = f"tools[{at}]"
        kind = tool.get("type")
        if kind in HOSTED and drop:
            read.dropped.append(kind)
            read.ignored.append(f"{place}:{kind}")
            continue
        typed = _typed(tool, place)
        if isinstance(typed, NamespaceTool):
            for number, inner in enumerate(typed.tools):
                within = f"{place}.tools[{number}]"
                each = _typed(inner, within)
                if isinstance(each, NamespaceTool):
                    raise invalid(f"{within}: a namespace is not in another.", within)
                read.add(each, typed.name, typed.description or "", within)
        else:
            read.add(typed, "", "", place)
        if len(read.functions) > MAX_TOOLS:
            raise invalid(f"tools: at most {MAX_TOOLS} are taken.", "tools")
    return read


def qualified(namespace: str, name: str) -> str:
    """Returns the name by which the model knows a tool: with its namespace; a long one is shortened."""
    if not namespace:
        return name
    whole = f"{namespace.rstrip('_')}__{name}"
    if len(whole) <= MAX_NAME:
        return whole
    end = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{whole[: MAX_NAME - 9]}_{end}"


def _typed(tool: Json, place: str) -> FunctionTool | CustomTool | NamespaceTool:
    kind = _KINDS.get(str(tool.get("type")))
    if kind is None:
        raise _not_here(place, tool.get("type"))
    made: FunctionTool | CustomTool | NamespaceTool = _converted(tool, kind, place)
    return made


def _not_here(place: str, kind: object) -> ApiError:
    where = f"{place}.type"
    if kind in HOSTED:
        message = (
            f"{where}: {echo(kind)} is a hosted tool, which this server does not have; leave it out, or "
            "start the server with --drop-hosted-tools."
        )
    else:
        message = f"{where}: {echo(kind)} is none of function, custom and namespace."
    return invalid(message, where, "unsupported_value")


def _converted(value: Json, kind: Any, place: str) -> Any:  # noqa: ANN401 -- as msgspec has it
    try:
        return convert(value, kind)
    except msgspec.ValidationError as error:
        raise explained(error, place) from None


def _function(tool: FunctionTool | CustomTool, name: str, about: str) -> FunctionDefinition:
    description = "\n".join(filter(None, (about, tool.description)))
    if isinstance(tool, FunctionTool):
        return FunctionDefinition(name, description or None, tool.parameters, tool.strict)
    shape = tool.format
    if shape is not None and shape.definition:
        rule = f"The {INPUT} fits this {shape.syntax or 'lark'} grammar:\n{shape.definition}"
        description = "\n".join(filter(None, (description, rule)))
    return FunctionDefinition(name, description or None, dict(_ONE_STRING), strict=None)
