"""Chat completions that their clients asked the server to store."""

from __future__ import annotations

from typing import Any

import msgspec

from corepipe.serving.stores.table import Table


class StoredCompletion(msgspec.Struct, frozen=True):
    """A chat: its messages, and the answer as it was sent whole.  completion: JSON."""

    model: str
    messages: list[dict[str, Any]]
    completion: bytes
    metadata: dict[str, str] = {}


COMPLETIONS = Table("completions", StoredCompletion)
