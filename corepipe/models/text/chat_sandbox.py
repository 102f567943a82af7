"""Chat templates: the model's Jinja text, run in a sandbox with the globals that templates expect.

`python -m corepipe.models.text.chat_sandbox SECONDS` is the process that `chat` starts; its input is a
socket. The first frame is the template; then each RenderJob is answered by a RenderedChat. Jinja's sandbox
keeps a template from the interpreter, but not from looping for ever or from filling the memory; the limits of
a process do. The kernel ends a process that takes too much processor time.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2.debug  # noqa: F401 -- which jinja2 imports at the first error: by then no file can be opened
import msgspec
from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from corepipe import sandbox
from corepipe.models.text.chat import MAX_MEMORY, MAX_OUTPUT, RenderedChat, RenderJob
from corepipe.models.text.client_text import ClientTextExchange, PrivateCharacters
from corepipe.sandbox import MAX_FRAME, receive, send, time_limit


class GenerationBlock(Extension):
    """{% generation %}: marks the assistant's part for training; here its body is rendered as it is.

    What is set in it is not seen outside, as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012 -- as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _Generator(CodeGenerator):
    """Jinja's code generator, with `~` joining texts by the environment's `concat`, as macros do."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 -- Jinja's name
        self.write("concat(map(str, (")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write(")))")


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of templates; it keeps clients' text marked, however a template joins texts."""

    code_generator_class = _Generator

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        self.exchange: ClientTextExchange | None = None
        self.filters = {name: self._keeping(one) for name, one in self.filters.items()}

    def concat(self, texts: Iterable[str]) -> str:
        return str(self._kept("".join(texts)))

    def call(self, context: Context, called: object, *given: object, **named: object) -> object:
        return self._kept(super().call(context, called, *given, **named))

    def _keeping(self, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def filtered(*given: object, **named: object) -> object:
            return self._kept(function(*given, **named))

        return filtered

    def _kept(self, value: object) -> object:
        return value if self.exchange is None else self.exchange.kept(value)


class CompiledTemplate:
    """A compiled template; raises TemplateError and similar errors for a text that is not a template."""

    def __init__(self, text: str) -> None:
        self._environment = environment = _Environment()
        environment.filters["tojson"] = self._tojson
        del environment.globals["lipsum"]  # it makes texts of any length
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self._guard: PrivateCharacters | None = None
        self._template = environment.from_string(text)

    def answer(self, job: RenderJob) -> str:
        """Renders up to `MAX_OUTPUT` characters; raises whatever the template's expressions raise."""
        self._guard = job.guard
        self._environment.exchange = exchange = None if job.guard is None else ClientTextExchange(job.guard)
        if exchange is None:
            return self.render(job.messages, job.variables)
        given = {name: exchange.exchanged(job.variables[name]) for name in job.given}
        return self.render([exchange.exchanged(one) for one in job.messages], job.variables | given)

    def render(self, messages: list[Any], variables: Mapping[str, Any]) -> str:
        """Renders messages and variables as the template sees them."""
        parts: list[str] = []
        size = 0
        for part in self._template.generate(messages=messages, **variables):
            size += len(part)
            if size > MAX_OUTPUT:
                raise MemoryError(f"it wrote more than {MAX_OUTPUT} characters")
            parts.append(part)
        return "".join(parts)

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes HTML, which would change what the model reads.
        guard = self._guard
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii and guard is None,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        return (
            text
            if guard is None
            else self._environment.concat([guard.escaped(text, ensure_ascii=ensure_ascii)])
        )


def _line(error: BaseException) -> str:
    text = " ".join(str(error)[:1000].split())[:300]
    return text or ("it takes too much memory" if isinstance(error, MemoryError) else type(error).__name__)


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def main(cpu_seconds: float) -> None:
    """Serves until the other end is closed."""
    connection = sandbox.connection()
    CompiledTemplate("{{ strftime_now('%c') }}").render(
        [], {}
    )  # loads what Python loads late: time zone, codecs
    sandbox.confine(MAX_MEMORY)
    with contextlib.suppress(EOFError, ConnectionError):
        text = receive(connection, MAX_FRAME).decode()
        template, answer = _compile(text, cpu_seconds)
        send(connection, msgspec.msgpack.encode(answer))
        while template is not None:
            job = msgspec.msgpack.decode(receive(connection, MAX_FRAME), type=RenderJob)
            send(connection, msgspec.msgpack.encode(_answer(template, job, cpu_seconds)))


def _compile(text: str, cpu_seconds: float) -> tuple[CompiledTemplate | None, RenderedChat]:
    try:
        with time_limit(cpu_seconds):
            return CompiledTemplate(text), RenderedChat("")
    except Exception as error:
        return None, RenderedChat(error=_line(error))


def _answer(template: CompiledTemplate, job: RenderJob, cpu_seconds: float) -> RenderedChat:
    try:
        with time_limit(cpu_seconds):
            return RenderedChat(template.answer(job))
    except Exception as error:  # whatever its expressions raise: the messages are not as it expects
        hostile = isinstance(error, SecurityError | MemoryError)
        line = _line(error) if job.guard is None else _line(error).translate(job.guard.back)
        return RenderedChat(error=line, hostile=hostile)


if __name__ == "__main__":
    main(float(sys.argv[1]))
