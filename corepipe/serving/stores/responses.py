"""Stored responses: the object, the items before it, and the request of one that has not ended."""

from __future__ import annotations

from typing import Any

import msgspec

from corepipe.serving.stores.table import Table


class StoredResponse(msgspec.Struct, frozen=True):
    """A response.  items: its input, after all that was said before.

    request: the request of one that has not ended; it is computed again after a restart.  fingerprint: the
    configuration that computes it.  streamed: its events are there, as one compressed entry.
    """

    response: dict[str, Any]
    items: list[dict[str, Any]]
    request: dict[str, Any] | None = None
    fingerprint: str = ""
    streamed: bool = False


RESPONSES = Table("responses", StoredResponse)
