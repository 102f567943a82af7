"""Chat templates: the model's Jinja text, run in a sandbox with the globals that templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from corepipe.errors import UserError

# What an expression in a template can raise when the messages are not what the template expects.
RENDER_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class GenerationBlock(Extension):
    """{% generation %}: marks the assistant's part for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 -- as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template; raises UserError if its text is no valid template."""

    def __init__(self, text: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(text)
        except (TemplateError, RecursionError) as error:
            raise UserError(f"the chat template is not valid: {_line(error)}") from error

    def render(self, messages: Sequence[Mapping[str, object]], variables: Mapping[str, object]) -> str:
        """The prompt's text; raises UserError for messages the template refuses."""
        try:
            return self._template.render(messages=list(messages), **variables)
        except RENDER_ERRORS as error:
            raise UserError(
                f"the chat template refuses these messages: {_line(error)}", "messages"
            ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would change what the model reads.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
