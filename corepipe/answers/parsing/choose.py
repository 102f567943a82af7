"""The choice of a model's formats of calls and reasoning: by flags, its files or its chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from corepipe.answers.parsing.formats import FORMATS, REASONING, CallFormat, ReasoningFormat
from corepipe.answers.parsing.response_template import UnreadableError, from_response_template
from corepipe.errors import UserError, shown

AUTO, NONE = "auto", "none"

_MARKERS: Sequence[tuple[tuple[str, ...], str]] = (
    (("<function=", "<parameter="), "qwen3_coder"),
    (("xml_tools", "<tool_call>"), "smollm3"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_v11"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|python_start|>",), "llama4_pythonic"),
    (("[func_name1(",), "pythonic"),
    (("<|python_tag|>",), "llama3_json"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
    (("SmolLM, trained by Hugging Face",), "smollm2"),
)
"""Texts of chat templates, and the format of calls that all of them indicate; the first match counts."""


class ModelTexts(Protocol):
    """The templates and tokens of a model, as its tokenizer has them."""

    @property
    def chat_template(self) -> str | None: ...

    @property
    def response_template(self) -> Mapping[str, Any] | None: ...

    @property
    def added_tokens(self) -> Mapping[str, int]: ...


class Dialect(msgspec.Struct, frozen=True):
    """The formats in which a model writes calls and reasoning; None: unknown, or it writes none.

    source: where this comes from, as the server prints at its start.  presents_tools: its template presents
    tools to the model; else a system message does.  extra: names beside `tools` under which its template
    expects them. note: a problem with its files.
    """

    calls: CallFormat | None = None
    reasoning: ReasoningFormat | None = None
    source: str = "no chat template"
    presents_tools: bool = False
    extra: tuple[str, ...] = ()
    note: str = ""

    def summary(self) -> str:
        """Describes it in one line."""
        calls = self.calls.name if self.calls else NONE
        reasoning = self.reasoning.name if self.reasoning else NONE
        note = f"; {self.note}" if self.note else ""
        return f"tool calls as {calls}, reasoning as {reasoning} ({self.source}){note}"


def choose(speaker: ModelTexts, calls: str = AUTO, reasoning: str = AUTO) -> Dialect:
    """Chooses the dialect of a model; flags of the operator win.  Raises UserError for unknown names."""
    _check_name(calls, FORMATS, "tool_call_parser")
    _check_name(reasoning, REASONING, "reasoning_parser")
    found = _found(speaker)
    changes: dict[str, Any] = {}
    if calls != AUTO:
        changes["calls"] = FORMATS.get(calls)
    if reasoning != AUTO:
        changes["reasoning"] = REASONING.get(reasoning)
    if not changes:
        return found
    rest = "" if len(changes) == 2 else f", else {found.source}"
    return msgspec.structs.replace(found, **changes, source=f"by flag{rest}")


def _check_name(name: str, known: Mapping[str, object], flag: str) -> None:
    if name not in (AUTO, NONE) and name not in known:
        there = ", ".join([AUTO, NONE, *known])
        raise UserError(f"--{flag.replace('_', '-')} {shown(name)} is not known; there are {there}", flag)


def _found(speaker: ModelTexts) -> Dialect:
    template = speaker.chat_template
    if template is None:
        return Dialect()
    presents_tools = re.search(r"\btools\b|xml_tools", template) is not None
    extra = tuple(name for name in ("xml_tools",) if name in template)
    found = Dialect(
        _calls_of(template, presents_tools=presents_tools),
        _reasoning_of(template),
        "by its chat template",
        presents_tools,
        extra,
    )
    if speaker.response_template is None:
        return found
    try:
        calls, reasoning = from_response_template(speaker.response_template)
    except UnreadableError as error:
        return msgspec.structs.replace(found, note=f"its response_template is not used: {error}")
    return msgspec.structs.replace(found, calls=calls, reasoning=reasoning, source="by its response_template")


def _calls_of(template: str, *, presents_tools: bool) -> CallFormat | None:
    for markers, name in _MARKERS:
        if all(marker in template for marker in markers):
            return FORMATS[name]
    return None if presents_tools else FORMATS["hermes"]


def _reasoning_of(template: str) -> ReasoningFormat | None:
    return next((one for one in REASONING.values() if one.closing in template), None)
