"""Formats of tool calls and reasoning of models, as data: markers are defined here alone."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import msgspec

MISTRAL_ID = 9
"""The length of a call's id in letters and digits: Mistral's templates refuse others."""


_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 24


class Body(Enum):
    """The form of the name and the arguments of a call between its opening and closing markers."""

    OBJECT = "object"
    """`{"name": "f", "arguments": {"a": 1}}`."""
    NAMED = "named"
    """The name, then the arguments as a JSON object: `f[ARGS]{"a": 1}`."""
    TAGS = "tags"
    """`<function=f><parameter=a>1</parameter></function>`."""
    PYTHON = "python"
    """`f(a=1)`, in a list or as lines of a program."""


class Tags(msgspec.Struct, frozen=True):
    """The literals of `Body.TAGS`; each opening is followed by a name and `mark`."""

    function: str = "<function="
    function_end: str = "</function>"
    parameter: str = "<parameter="
    parameter_end: str = "</parameter>"
    mark: str = ">"


class CallFormat(msgspec.Struct, frozen=True):
    """The format in which a model writes its tool calls.

    opening, closing: the markers around a call, or around all of them; an empty opening stands for the
    beginning of the answer.  bare: the beginning of the answer also counts as the opening.  lead: what the
    model writes after the opening and before the closing.  listed: calls are in a list, even a single one.
    separator: between calls of one opening; None: each call has its own opening.  id_length: the letters and
    digits of an id, where templates require a length.  after_name: between name and arguments of
    `Body.NAMED`; where it is set, calls that begin as JSON are read as such, too.
    """

    name: str
    body: Body = Body.OBJECT
    opening: str = ""
    closing: str = ""
    bare: bool = False
    lead: str = ""
    listed: bool = False
    separator: str | None = None
    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    after_name: str = ""
    tags: Tags = Tags()
    id_length: int = 0

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers that distinguish calls from text."""
        tags = self.tags if self.body is Body.TAGS else None
        inside = (tags.function, tags.function_end, tags.parameter, tags.parameter_end) if tags else ()
        return tuple(filter(None, (self.opening, self.closing, self.after_name, *inside)))

    @property
    def starts(self) -> str:
        """The first character of calls that stand at the beginning of the answer; "" where none do."""
        if self.opening and not self.bare:
            return ""
        return "[" if self.body is Body.PYTHON else "{["


class ReasoningFormat(msgspec.Struct, frozen=True):
    """The markers around a model's reasoning, which comes before the rest of its answer."""

    name: str
    opening: str = "<think>"
    closing: str = "</think>"

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers that distinguish reasoning from text."""
        return (self.opening, self.closing)


class AnswerFormat(msgspec.Struct, frozen=True):
    """The format in which the answers to a request are read.

    tools: the schemas of the tools that may be called, by name; without any, calls are text.  thinking: the
    prompt has opened the reasoning; thought: it has closed it.  single: the answer ends after its first call.
    named: the client has named the tool, and its finish_reason is "stop", not "tool_calls".
    """

    calls: CallFormat | None = None
    reasoning: ReasoningFormat | None = None
    tools: Mapping[str, Mapping[str, Any]] = {}
    thinking: bool = False
    thought: bool = False
    single: bool = False
    named: bool = False

    def marks(self, tokens: Mapping[str, int]) -> frozenset[int]:
        """Returns the tokens that occur in markers, which the text must show."""
        markers = [
            *(self.calls.markers if self.calls else ()),
            *(self.reasoning.markers if self.reasoning else ()),
        ]
        return frozenset(
            number for name, number in tokens.items() if name.strip() and any(name in one for one in markers)
        )

    def new_id(self) -> str:
        length = self.calls.id_length if self.calls else 0
        letters = "".join(secrets.choice(_LETTERS) for _ in range(length or _ID_LENGTH))
        return letters if length else f"call_{letters}"


_HERMES = CallFormat("hermes", opening="<tool_call>", closing="</tool_call>", lead="\n")
_QWEN_CODER = msgspec.structs.replace(_HERMES, name="qwen3_coder", body=Body.TAGS)
_LLAMA = CallFormat(
    "llama3_json",
    opening="<|python_tag|>",
    bare=True,
    separator="; ",
    argument_keys=("parameters", "arguments"),
)
_MISTRAL = CallFormat(
    "mistral", opening="[TOOL_CALLS]", listed=True, separator=", ", after_name="[ARGS]", id_length=MISTRAL_ID
)
_PYTHONIC = CallFormat("pythonic", Body.PYTHON, listed=True, separator=", ")

FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        one.name: one
        for one in (
            _HERMES,
            msgspec.structs.replace(_HERMES, name="qwen3_json"),
            _QWEN_CODER,
            msgspec.structs.replace(_QWEN_CODER, name="qwen3_xml"),
            _LLAMA,
            msgspec.structs.replace(_LLAMA, name="llama4_json"),
            _PYTHONIC,
            msgspec.structs.replace(
                _PYTHONIC,
                name="llama4_pythonic",
                opening="<|python_start|>",
                closing="<|python_end|>",
                bare=True,
            ),
            _MISTRAL,
            msgspec.structs.replace(
                _MISTRAL, name="mistral_v11", body=Body.NAMED, listed=False, separator=None
            ),
            msgspec.structs.replace(_HERMES, name="smollm2", lead="", listed=True, separator=", "),
            msgspec.structs.replace(_HERMES, name="smollm3"),
            CallFormat("smollm3_python", Body.PYTHON, "<code>", "</code>", separator="\n"),
        )
    }
)
"""The formats, by vLLM's names where it has one; models with the same format share it."""

REASONING: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        one.name: one
        for one in (
            ReasoningFormat("qwen3"),
            ReasoningFormat("deepseek_r1"),
            ReasoningFormat("smollm3"),
            ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        )
    }
)
