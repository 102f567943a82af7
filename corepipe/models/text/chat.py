"""Chat templates, rendered in a process of their own: what loops for ever ends that process, not this one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from corepipe.errors import UserError, shown
from corepipe.models.text.client_text import Guard
from corepipe.signals import held_back

LENGTH_BYTES = 4
CPU_SECONDS = 2.0
"""Of one rendering, or of compiling: Jinja folds constants when it compiles."""
MAX_MEMORY = 1 << 30
"""Bytes of address space."""
MAX_OUTPUT = 1 << 23
"""Characters; a prompt is limited by the model long before."""

MAX_FRAME = 1 << 26
"""Bytes; a conversation fits a request's body, and a prompt `MAX_OUTPUT`."""

START_SECONDS = 60.0
"""Until the process is up; it takes a tenth of a second on an idle machine."""
ANSWER_SECONDS = 20.0
"""Without processor time, for what the kernel's own limit on it does not end: a stopped process."""

ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "PYTHONPATH",
    "PYTHONHOME",
)
"""What the process needs of ours; there may be secrets in the rest."""

GREETING = [{"role": "user", "content": "Hello"}]
"""The conversation of a trial."""


class Job(msgspec.Struct):
    """A conversation to put into words."""

    messages: list[Any]
    variables: dict[str, Any]
    guard: Guard | None = None
    given: list[str] = []
    """Names of those variables that clients gave: guarded as their messages are."""


class Answer(msgspec.Struct):
    """`text`, or what was wrong; `hostile` where the template reached out of its sandbox, or for too much."""

    text: str | None = None
    error: str = ""
    hostile: bool = False


class TemplateRefusalError(UserError):
    """The template does not take these messages."""


class ChatTemplate:
    """A chat template; its process starts with the first use, and again after one that was ended.

    A rendering may take `cpu_seconds` of processor time.  Safe to use from several threads: one at a time.
    """

    def __init__(self, text: str, cpu_seconds: float = CPU_SECONDS) -> None:
        self._text = text
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()
        self._renderer: _Renderer | None = None

    def check(self) -> None:
        """Compiles the template and tries it on a short conversation.

        Raises UserError if it is not valid, reaches out of its sandbox, or takes more time, memory or room
        than a conversation may.  That it refuses this one is its good right.
        """
        answer = self._ask(Job(GREETING, {"add_generation_prompt": True}))
        if answer.hostile:
            raise UserError(f"the chat template is refused: {shown(answer.error, 300)}")

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        variables: Mapping[str, object],
        guard: Guard | None = None,
        given: Iterable[str] = (),
    ) -> str:
        """The prompt's text.  Raises TemplateRefusalError, and UserError for messages that take too long.

        With a `guard` the template sees the messages, and the variables that are `given` by clients, in other
        characters, and what it makes of them has these.
        """
        answer = self._ask(Job(list(messages), dict(variables), guard, list(given)))
        if answer.text is None:
            message = f"the chat template refuses these messages: {shown(answer.error, 300)}"
            raise TemplateRefusalError(message, "messages")
        return answer.text

    def _ask(self, asked: Job) -> Answer:
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
            except _EndedError as error:
                self._renderer = None
                raise UserError(f"the chat template {error}", "messages") from error


class _EndedError(Exception):
    """The process is gone; why, as the end of a sentence about the template."""


class _Renderer:
    """A process that has compiled a template."""

    def __init__(self, text: str, cpu_seconds: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs, held_back():
            process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [sys.executable, "-P", "-m", "corepipe.models.text.chat_sandbox", str(cpu_seconds)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                start_new_session=True,  # Ctrl-C in a terminal is ours to answer
            )
        self._connection, self._process, self._cpu_seconds = ours, process, cpu_seconds
        self._close = weakref.finalize(self, _end, ours, process)
        compiled = self.ask(text.encode(errors="replace"), START_SECONDS)
        if compiled.text is None:
            self._close()
            raise UserError(f"the chat template is not valid: {shown(compiled.error, 300)}")

    def ask(self, frame: bytes, seconds: float) -> Answer:
        """Raises _EndedError, and has ended the process, where no answer comes."""
        self._connection.settimeout(seconds)
        try:
            send(self._connection, frame)
            self._await_answer()
            return msgspec.msgpack.decode(receive(self._connection, MAX_FRAME), type=Answer)
        except (EOFError, OSError, ValueError) as error:
            raise _EndedError(self._why(error)) from error

    def _await_answer(self) -> None:
        """Raises TimeoutError where the process gets on no more; on a busy machine it may take its time."""
        spent = -1.0
        while True:
            try:
                self._connection.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                before, spent = spent, self._spent()
                if spent <= before:
                    raise
            else:
                return

    def _spent(self) -> float:
        """Seconds of processor time."""
        import psutil  # noqa: PLC0415 -- the process that renders imports this module, and is started often

        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return -1.0
        return float(times.user + times.system)

    def _why(self, error: Exception) -> str:
        if not isinstance(error, TimeoutError):
            with contextlib.suppress(subprocess.TimeoutExpired):  # it ends a little after the stream
                self._process.wait(1.0)
        code = self._process.poll()
        self._close()
        if isinstance(error, TimeoutError):
            return "waits for a process that gets no processor time"
        if code == -signal.SIGPROF:
            return f"takes more than {self._cpu_seconds:g} s of processor time"
        return "ended the process that renders it" + ("" if code is None else f" ({code})")


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()


def receive(connection: socket.socket, most: int) -> bytes:
    """The next frame; raises EOFError at the end, ValueError for one of more than `most` bytes."""
    length = int.from_bytes(_exactly(connection, LENGTH_BYTES), "little")
    if length > most:
        raise ValueError(f"a frame of {length} bytes")
    return _exactly(connection, length)


def send(connection: socket.socket, data: bytes) -> None:
    """Writes a frame."""
    connection.sendall(len(data).to_bytes(LENGTH_BYTES, "little") + data)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        data = connection.recv(min(count - len(parts), 1 << 20))
        if not data:
            raise EOFError
        parts += data
    return bytes(parts)
