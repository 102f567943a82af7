"""Requests to Ray's ports without a token: Ray refuses them, and only its logs mention it.

Requests with a wrong token are refused, too, but Ray (2.60) does not log them anywhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from corepipe.errors import UserError

LOGS = ("gcs_server.out", "raylet.out")
"""The logs of the processes that listen: the control plane of a fleet, and the agent of a machine."""

REFUSED = b"Missing authorization header"

LOOK_SECONDS = 2.0

MOST_BYTES = 1 << 24
"""The most bytes of a log that are read at a time."""


class UnauthenticatedRequests:
    """Counts the refused requests in the logs of the current session in `folder`, Ray's directory."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._logs = folder / "session_latest" / "logs"
        self._read = dict.fromkeys(LOGS, 0)

    def look(self) -> int:
        """Returns their number until now.  Logs that appear later or begin anew are read from their start."""
        for name in LOGS:
            with contextlib.suppress(FileNotFoundError):
                self.count += self._new_lines(name).count(REFUSED)
        return self.count

    def _new_lines(self, name: str) -> bytes:
        """Reads the complete lines that a log has got since the last look."""
        with (self._logs / name).open("rb") as file:
            if file.seek(0, 2) < self._read[name]:
                self._read[name] = 0
            file.seek(self._read[name])
            found = file.read(MOST_BYTES)
        whole = found[: found.rfind(b"\n") + 1]
        self._read[name] += len(whole)
        return whole


@contextlib.contextmanager
def counted(folder: Path, tell: Callable[[int], None]) -> Iterator[None]:
    """Passes each new number to `tell` meanwhile, and again later where that raises UserError."""
    ended = threading.Event()

    def watch() -> None:
        unauthenticated, told = UnauthenticatedRequests(folder), 0
        while not ended.wait(LOOK_SECONDS):
            count = unauthenticated.look()
            if count != told:
                with contextlib.suppress(UserError):
                    tell(count)
                    told = count

    thread = threading.Thread(target=watch, name="unauthenticated requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
