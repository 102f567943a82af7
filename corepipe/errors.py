"""Errors that the user can correct."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The error numbers of an OSError where a disk, a quota or a limit on file sizes leaves no room."""


class UserError(Exception):
    """Raised for wrong input of the user; the message is one line with the problem and the next step.

    Commands print it and exit with 2; the server answers 400 with `param`, the field at fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def shown(value: object, most: int = 80) -> str:
    """Quotes a text of a file or a client for one line of a message: cut, and only printable characters."""
    text = str(value) if isinstance(value, str | Path) else repr(value)
    cut = text if len(text) <= most else f"{text[:most]}..."
    # Not by a codec: those are imported when first used, which a process without files cannot do.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def why(error: Exception) -> str:
    """Returns why a file could not be read, or a server not be reached: without the error's number and the
    path, as the message names the file."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def no_room(what: str, folder: Path, needed: int, reason: int = errno.ENOSPC) -> UserError:
    """Makes the error of a cache folder without room for `needed` bytes; `reason` is one of DISK_FULL."""
    needed_mb, free_mb = (f"{size / 1e6:.0f} MB" for size in (needed, shutil.disk_usage(folder).free))
    return UserError(
        f"{what}: {os.strerror(reason)} in {folder}: {needed_mb} are needed, {free_mb} are free; "
        "make room, or set COREPIPE_CACHE to another directory"
    )


def check_room(what: str, folder: Path, needed: int) -> None:
    """Raises UserError, before anything is written, where a cache folder has no room for `needed` bytes."""
    if shutil.disk_usage(folder).free < needed:
        raise no_room(what, folder, needed)
