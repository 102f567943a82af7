"""Errors that are the user's to mend."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What an OSError says where a disk, a quota or a limit on files leaves no room."""


class UserError(Exception):
    """Something the user gave is wrong; the message is one line that says what and what to do.

    Commands print it and exit with 2; the server answers 400 with `param`, the field at fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def shown(value: object, most: int = 80) -> str:
    """What a file or a client says, as one line of a message may quote it: cut, and nothing but printable."""
    text = str(value) if isinstance(value, str | Path) else repr(value)
    cut = text if len(text) <= most else f"{text[:most]}..."
    # Not by a codec: those are imported when first used, which a process without files cannot do.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def why(error: Exception) -> str:
    """The reason why a file could not be read, for a message that names the file: without number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def no_room(what: str, folder: Path, needed: int, reason: int = errno.ENOSPC) -> UserError:
    """That a folder of the cache cannot take `needed` bytes; `reason` is one of DISK_FULL."""
    needed_mb, free_mb = (f"{size / 1e6:.0f} MB" for size in (needed, shutil.disk_usage(folder).free))
    return UserError(
        f"{what}: {os.strerror(reason)} in {folder}: {needed_mb} are needed, {free_mb} are free; "
        "make room, or set COREPIPE_CACHE to another directory"
    )


def check_room(what: str, folder: Path, needed: int) -> None:
    """Raises UserError, before anything is written, where a folder of the cache has no `needed` bytes."""
    if shutil.disk_usage(folder).free < needed:
        raise no_room(what, folder, needed)
