"""Puts exchanges into files of a directory, beside the event loop: whole or not at all, over no other."""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corepipe.errors import UserError
from corepipe.serving.api.cassettes.exchange import RecordedExchange, RecordedRequest
from corepipe.serving.api.cassettes.file_format import MalformedCassette, to_text
from corepipe.serving.api.cassettes.library import MAX_FILE, SUFFIX
from corepipe.serving.api.cassettes.redaction import Redaction

MOST_WAITING = 256 * 1024 * 1024
"""Bytes of answers that may wait for a slow disk."""

CountOutcome = Callable[[str], None]


class CassetteWriter:
    """A file an exchange, `WHAT-HASH-NUMBER.yaml`: the hash is the request's; identical ones are numbered.

    What keeps one from being written is told in the log, and costs no answer.  `count` is told of each:
    "recorded" or "lost".
    """

    def __init__(self, folder: Path, redaction: Redaction, flag: str, count: CountOutcome) -> None:
        """Raises UserError, naming `flag`, where files cannot be put there."""
        self._folder = folder
        self._redaction = redaction
        self._count = count
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiting = 0
        self._lost = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._try()
        except OSError as error:
            raise UserError(f"--{flag} {folder}: {error.strerror}", flag.replace("-", "_")) from error
        self._pool = ThreadPoolExecutor(1, "cassettes")

    def add(self, exchange: RecordedExchange) -> None:
        """Will be written; before `close` returns, at the latest."""
        size = len(exchange.request.body) + sum(len(piece.data) for piece in exchange.answer.pieces)
        with self._lock:
            room = self._waiting + size <= MOST_WAITING
            self._waiting += size if room else 0
        if room:
            self._pool.submit(self._write, exchange, size)
        else:
            self._lose("too much waits to be written")

    def close(self) -> None:
        """All that was added is written, or lost."""
        self._pool.shutdown(wait=True)
        if self._lost:
            _log().error("%d exchanges were not recorded in %s", self._lost, self._folder)

    def _write(self, exchange: RecordedExchange, size: int) -> None:
        try:
            redacted = self._redaction.exchange(exchange)
            text = to_text(redacted)
            if len(text) > MAX_FILE:
                raise MalformedCassette(f"it is larger than {MAX_FILE} bytes")
            new = self._put(name_of(redacted.request), text, once=redacted.request.method == "GET")
        except OSError as error:
            self._lose(error.strerror or str(error))
        except Exception as error:  # an answer is never the worse for its cassette
            self._lose(
                f"{type(error).__name__}: {error}" if not isinstance(error, MalformedCassette) else str(error)
            )
        else:
            if new:
                self._count("recorded")
        finally:
            with self._lock:
                self._waiting -= size

    def _put(self, stem: str, text: bytes, *, once: bool) -> bool:
        """Under the first number that is free, whoever else puts files there; `once`: under the first or not.

        False: there is one, and one is enough.
        """
        draft = self._folder / f".{stem}.{secrets.token_hex(8)}.tmp"
        number = 1 if once else self._numbers.get(stem, 1)
        try:
            with draft.open("xb") as file:
                file.write(text)
            while not _linked(draft, self._folder / f"{stem}-{number:03}{SUFFIX}"):
                if once:
                    return False
                number += 1
        finally:
            draft.unlink(missing_ok=True)
        self._numbers[stem] = number + 1
        return True

    def _try(self) -> None:
        """Raises OSError where what `_put` does cannot be done."""
        draft, target = (self._folder / f".{secrets.token_hex(8)}.{end}" for end in ("tmp", "try"))
        try:
            draft.touch(exist_ok=False)
            _linked(draft, target)
        finally:
            for file in (draft, target):
                file.unlink(missing_ok=True)

    def _lose(self, reason: str) -> None:
        with self._lock:  # the event loop loses, and so does the thread that writes
            self._count("lost")
            self._lost += 1
            first = self._lost == 1
        if first:
            _log().error("an answer was not recorded in %s (%s); the end tells of more", self._folder, reason)


def name_of(request: RecordedRequest) -> str:
    """What the file of a request is called, but for its number."""
    what = re.sub(r"[^a-z0-9]+", "-", request.path.lower().removeprefix("/v1/")).strip("-")[:40]
    return f"{what}-{request.key[:12]}"


def _linked(draft: Path, target: Path) -> bool:
    """Gives a file its name, unless there is one of that name."""
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    return True


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
