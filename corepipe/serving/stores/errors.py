"""Errors of the stores; the API makes answers of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class StoreError(Exception):
    """Failure of the disk or the database of a store: nothing was written.  `message` is for clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class StoreFullError(StoreError):
    """There is no room: on the disk, or for this tenant."""


@contextmanager
def disk_failures() -> Iterator[None]:
    """Raises a StoreError in place of an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFullError("The disk of the store is full.") from error
        raise StoreError(f"The store failed: {error.strerror}.") from error
