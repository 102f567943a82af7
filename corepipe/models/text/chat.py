"""Chat templates, rendered in processes of their own: an endless loop ends that process, not the server."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from corepipe.errors import UserError, shown
from corepipe.models.text.client_text import PrivateCharacters
from corepipe.models.text.content_form import TOOLS, ContentForms, dropped, found_forms
from corepipe.sandbox import ANSWER_SECONDS, MAX_FRAME, START_SECONDS, EndedError, SandboxProcess

CPU_SECONDS = 2.0
"""The processor time of one rendering, or of compiling, since Jinja folds constants when it compiles."""
MAX_MEMORY = 1 << 30
"""Bytes of address space."""
MAX_OUTPUT = 1 << 23
"""Characters; the model limits a prompt long before."""

GREETING = [{"role": "user", "content": "Hello"}]
"""The conversation that tries a template."""
PROBE = {"add_generation_prompt": True, "tools": TOOLS, "documents": None, "bos_token": "", "eos_token": ""}
"""Variables of the conversations that find the form of contents."""


class RenderJob(msgspec.Struct):
    """A conversation to render."""

    messages: list[Any]
    variables: dict[str, Any]
    guard: PrivateCharacters | None = None
    given: list[str] = []
    """Names of those variables that clients gave: they are guarded as the messages are."""


class RenderedChat(msgspec.Struct):
    """The rendered `text`, or the error; `hostile` where the template left its sandbox or took too much."""

    text: str | None = None
    error: str = ""
    hostile: bool = False


class TemplateRefusalError(UserError):
    """The template does not accept these messages."""


class ChatTemplate:
    """A chat template; its process starts with the first use, and again after one that was ended.

    A rendering may take `cpu_seconds` of processor time. Thread-safe: threads take turns.
    """

    def __init__(self, text: str, cpu_seconds: float = CPU_SECONDS) -> None:
        self._text = text
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()
        self._renderer: _Renderer | None = None
        self._forms: ContentForms | None = None

    def check(self) -> None:
        """Compiles the template and tries it on short conversations.

        Raises UserError if it is not valid, leaves its sandbox, takes more time, memory or output than a
        conversation may, or drops what users say. It may refuse these conversations.
        """
        answer = self._ask(RenderJob(GREETING, {"add_generation_prompt": True}))
        if answer.hostile:
            raise UserError(f"the chat template is refused: {shown(answer.error, 300)}")
        if self._content_forms().drops:
            raise dropped()

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        variables: Mapping[str, object],
        guard: PrivateCharacters | None = None,
        given: Iterable[str] = (),
    ) -> str:
        """Returns the prompt's text. Raises TemplateRefusalError, and UserError for messages that take too
        long, or where the template drops what users say.

        Contents are converted to the form that the template reads: texts, or lists of parts. With a `guard`
        the template sees the messages, and the variables that are `given` by clients, in private characters,
        and so does its output.
        """
        forms = self._content_forms()
        if forms.drops and any(one.get("content") for one in messages):
            raise dropped()
        answer = self._ask(RenderJob(forms.adapted(messages), dict(variables), guard, list(given)))
        if answer.text is None:
            message = f"the chat template refuses these messages: {shown(answer.error, 300)}"
            raise TemplateRefusalError(message, "messages")
        return answer.text

    def _content_forms(self) -> ContentForms:
        if self._forms is None:
            self._forms = found_forms(lambda messages: self._ask(RenderJob(list(messages), PROBE)).text)
        return self._forms

    def _ask(self, asked: RenderJob) -> RenderedChat:
        try:
            job = msgspec.msgpack.encode(asked)
        except (UnicodeEncodeError, TypeError, RecursionError) as error:
            raise UserError(
                f"the messages cannot be rendered: {shown(str(error), 200)}", "messages"
            ) from error
        if len(job) > MAX_FRAME:
            raise UserError(f"the messages are larger than {MAX_FRAME} bytes", "messages")
        with self._lock:
            try:
                if self._renderer is None:
                    self._renderer = _Renderer(self._text, self._cpu_seconds)
                return self._renderer.ask(job, ANSWER_SECONDS)
            except EndedError as error:
                self._renderer = None
                raise UserError(f"the chat template {error}", "messages") from error


class _Renderer:
    """A process that has compiled a template."""

    def __init__(self, text: str, cpu_seconds: float) -> None:
        self.process = SandboxProcess("corepipe.models.text.chat_sandbox", cpu_seconds)
        compiled = self.ask(text.encode(errors="replace"), START_SECONDS)
        if compiled.text is None:
            self.process.close()
            raise UserError(f"the chat template is not valid: {shown(compiled.error, 300)}")

    def ask(self, frame: bytes, seconds: float) -> RenderedChat:
        """Returns the process's reply. Raises EndedError, after ending the process, where there is none."""
        return self.process.ask(frame, RenderedChat, seconds)
