"""Who comes to Ray's ports without a token: Ray refuses them, and says so in its logs alone.

A token that is there and wrong is refused, too, of which Ray (2.60) leaves no trace anywhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from corepipe.errors import UserError

LOGS = ("gcs_server.out", "raylet.out")
"""Of the processes that listen: the books of a fleet, and a machine's own."""

REFUSED = b"Missing authorization header"

LOOK_SECONDS = 2.0

MOST_BYTES = 1 << 24
"""Of a log that are read at a time."""


class UnauthenticatedRequests:
    """Counts them in the logs of the session in `folder`, which is Ray's."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._logs = folder / "session_latest" / "logs"
        self._read = dict.fromkeys(LOGS, 0)

    def look(self) -> int:
        """So many until now.  Logs that are not there yet, or begun anew, are read from their start."""
        for name in LOGS:
            with contextlib.suppress(FileNotFoundError):
                self.count += self._new_lines(name).count(REFUSED)
        return self.count

    def _new_lines(self, name: str) -> bytes:
        """Whole ones."""
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
    """Meanwhile `tell` gets each new number; where it raises UserError it gets that again later."""
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
