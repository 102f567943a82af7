"""A stderr for processes that must not wait for its reader: a full pipe, a full disk or no reader at all.

Text that is written waits here for a thread that writes it. Lines that find no room, or cannot be written,
are counted; their number is logged once all waiting text has been written.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading

MOST_WAITING = 1 << 18
"""Most characters that wait to be written."""

LAST_SECONDS = 2.0
"""At the end of the process: when nothing could be written for so long, the waiting text is given up."""


def write_without_waiting() -> None:
    """Makes writes of this process to `sys.stderr` return without waiting from now on.

    Standard streams that are closed are opened on /dev/null, so that the next file that is opened does not
    take their place.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    log = NonBlockingLog(2)
    atexit.register(log.drain)
    sys.stderr = log


class NonBlockingLog(io.TextIOBase):
    """A text stream to a file descriptor, whose writes never wait."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.dropped = 0
        """Lines so far."""
        self._fd = fd
        self._texts: list[str] = []
        self._waiting = 0
        self._logged = 0
        self._changed = threading.Condition()  # re-entrant: a signal handler may write as well
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def write(self, text: str) -> int:
        """Takes all of the text, or drops all of it."""
        with self._changed:
            if self._waiting + len(text) > MOST_WAITING:
                self.dropped += text.count("\n")
            else:
                self._texts.append(text)
                self._waiting += len(text)
                self._changed.notify_all()
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def drain(self) -> None:
        """Waits until all text is written, or until none has been for `LAST_SECONDS`."""
        with self._changed:
            while self._waiting and self._changed.wait(LAST_SECONDS):
                pass

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts)
                text = "".join(self._texts)
                self._texts.clear()
            written = self._write(text)
            if written and not self._texts:
                self._log_losses()  # after all text that was written before
            with self._changed:
                self._waiting -= len(text)
                if not written:
                    self.dropped += text.count("\n")
                self._changed.notify_all()

    def _log_losses(self) -> None:
        dropped = self.dropped
        lost = dropped - self._logged
        if lost and self._write(f"corepipe: {lost} lines of this log could not be written\n"):
            self._logged = dropped

    def _write(self, text: str) -> bool:
        """Waits for the reader; returns False where there is none, or no room."""
        data = memoryview(text.encode(self.encoding, self.errors))
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another process has made the file non-blocking
                select.select([], [self._fd], [])
            except OSError:
                return False
        return True
