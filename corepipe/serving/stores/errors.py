"""Errors of the stores; the API makes answers of them."""

from __future__ import annotations


class StoreError(Exception):
    """Failure of the disk or the database of a store: nothing was written.  `message` is for clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class StoreFullError(StoreError):
    """There is no room: on the disk, or for this tenant."""
