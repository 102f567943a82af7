"""Tools in a prompt: how they are presented to the model, and the format of its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from corepipe.answers.parsing.choose import Dialect
from corepipe.answers.parsing.formats import AnswerFormat, CallFormat
from corepipe.answers.parsing.tools import OfferedTools
from corepipe.errors import UserError
from corepipe.models.text.content_form import text_of

TAIL_TOKENS = 32
"""The last tokens of a prompt, among which a template's opening of the reasoning stands."""

_INSTRUCTIONS = """\
You may call functions. They are, one JSON object a line:
<tools>
{tools}
</tools>
To call some, answer with nothing but this, NAME and ARGUMENTS (a JSON object) being theirs:
{example}"""


def check_callable(dialect: Dialect, offer: OfferedTools | None) -> None:
    """Raises UserError where tools may be called, but the model's format of calls is unknown."""
    if offer is not None and offer.callable and dialect.calls is None:
        raise UserError(
            "tools: the format of this model's tool calls is unknown, or cannot be read: "
            "start the server with --tool-call-parser NAME, or send tool_choice none.",
            "tools",
        )


def template_input(
    messages: Sequence[Mapping[str, Any]], offer: OfferedTools | None, dialect: Dialect
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns (messages, variables) for the chat template.

    The tools are variables of it; a template without tools gets them in a system message, unless none may be
    called.
    """
    turns = [dict(message) for message in messages]
    if offer is None:
        return turns, {}
    if dialect.presents_tools:
        described = offer.described()
        return turns, dict.fromkeys(("tools", *dialect.extra), described)
    if not offer.callable or dialect.calls is None:
        return turns, {}
    return _instructed(turns, _instructions(offer, dialect.calls)), {}


def reasoning_variables(effort: str | None, template: str | None) -> dict[str, Any]:
    """Returns the template's variables for a reasoning effort; empty where the template has none.

    "none" switches reasoning off, anything else on, where the template has a switch.
    """
    if effort is None:
        return {}
    thinks = effort != "none"
    values = {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}
    return {name: value for name, value in values.items() if _names(template, name)}


def verbosity_variables(verbosity: str | None, template: str | None) -> dict[str, Any]:
    """Returns the template's variable for a verbosity; empty where the template has none."""
    return {"verbosity": verbosity} if verbosity is not None and _names(template, "verbosity") else {}


def unheard(effort: str | None, verbosity: str | None, template: str | None) -> list[str]:
    """Returns the names of those fields that have no effect with this template."""
    names = []
    if effort not in (None, "none") and not reasoning_variables(effort, template):
        names.append("reasoning_effort")
    if verbosity not in (None, "medium") and not verbosity_variables(verbosity, template):
        names.append("verbosity")
    return names


def _names(template: str | None, variable: str) -> bool:
    return re.search(rf"(?<![\w.'\"]){variable}\b", template or "") is not None


def reading_of(dialect: Dialect, offer: OfferedTools | None, tail: str) -> AnswerFormat | None:
    """Returns the format of the answer to a prompt that ends with `tail`; None: all of it is text."""
    calls = dialect.calls if offer is not None and offer.callable else None
    reasoning = dialect.reasoning
    if calls is None and reasoning is None:
        return None
    return AnswerFormat(
        calls=calls,
        reasoning=reasoning,
        tools=offer.schemas if offer is not None and calls is not None else {},
        thinking=reasoning is not None and tail.rstrip().endswith(reasoning.opening),
        thought=reasoning is not None and tail.rstrip().endswith(reasoning.closing),
        single=offer is not None and offer.single,
        named=offer is not None and offer.named,
    )


def _instructions(offer: OfferedTools, form: CallFormat) -> str:
    tools = "\n".join(json.dumps(one["function"], ensure_ascii=False) for one in offer.described())
    call = '{"name": NAME, "arguments": ARGUMENTS}'
    example = f"{form.opening}{form.lead}{f'[{call}]' if form.listed else call}{form.lead}{form.closing}"
    return _INSTRUCTIONS.format(tools=tools, example=example)


def _instructed(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Adds the text at the end of the system message, which is the first message."""
    if messages and messages[0].get("role") == "system":
        first, *rest = messages
        return [{**first, "content": f"{text_of(first['content'])}\n\n{text}"}, *rest]
    return [{"role": "system", "content": text}, *messages]
