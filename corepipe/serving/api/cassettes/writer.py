"""Writes exchanges to files of a directory, in a thread: whole or not at all, never over another file."""

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
"""The most bytes of exchanges that may wait for a slow disk."""

CountOutcome = Callable[[str], None]


class CassetteWriter:
    """Writes one file for each exchange, `PATH-HASH-NUMBER.yaml`: the hash is that of the request; files of
    identical requests are numbered.

    A failure to write is logged and harms no answer.  `count` is called for each exchange with "recorded" or
    "lost".
    """

    def __init__(self, folder: Path, redaction: Redaction, flag: str, count: CountOutcome) -> None:
        """Raises UserError that names `flag` if files cannot be written to the folder."""
        self._folder = folder
        self._redaction = redaction
        self._count = count
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiting = 0
        self._lost = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check_folder()
        except OSError as error:
            raise UserError(f"--{flag} {folder}: {error.strerror}", flag.replace("-", "_")) from error
        self._pool = ThreadPoolExecutor(1, "cassettes")

    def add(self, exchange: RecordedExchange) -> None:
        """Queues an exchange for writing; it is written before `close` returns at the latest."""
        size = len(exchange.request.body) + sum(len(piece.data) for piece in exchange.answer.pieces)
        with self._lock:
            room = self._waiting + size <= MOST_WAITING
            self._waiting += size if room else 0
        if room:
            self._pool.submit(self._write, exchange, size)
        else:
            self._lose("too many bytes wait to be written; is the disk slow?")

    def close(self) -> None:
        """Waits until all exchanges are written or lost."""
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
        except Exception as error:  # recording must never harm an answer
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
        """Writes a file under the first free number, even if others write there; `once`: only number 1.

        Returns False if `once` is set and the file exists already.
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

    def _check_folder(self) -> None:
        """Raises OSError if files cannot be created and linked in the folder."""
        draft, target = (self._folder / f".{secrets.token_hex(8)}.{end}" for end in ("tmp", "try"))
        try:
            draft.touch(exist_ok=False)
            _linked(draft, target)
        finally:
            for file in (draft, target):
                file.unlink(missing_ok=True)

    def _lose(self, reason: str) -> None:
        with self._lock:  # called by the event loop and by the thread that writes
            self._count("lost")
            self._lost += 1
            first = self._lost == 1
        if first:
            message = "an exchange was not recorded in %s: %s; further ones are counted at the end"
            _log().error(message, self._folder, reason)


def name_of(request: RecordedRequest) -> str:
    """Returns the file name of a request, without its number."""
    what = re.sub(r"[^a-z0-9]+", "-", request.path.lower().removeprefix("/v1/")).strip("-")[:40]
    return f"{what}-{request.key[:12]}"


def _linked(draft: Path, target: Path) -> bool:
    """Links a file to its final name; returns False if that name exists."""
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    return True


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
