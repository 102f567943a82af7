"""The list of models in Anthropic's form, for clients that name a version of its API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from corepipe.serving.api.http.errors import echo, invalid

VERSION = "anthropic-version"
"""The header by which Anthropic's clients are known."""
MOST, USUAL = 1000, 20
"""The most models of a page, and how many it has unless the client asks for others."""


def page(cards: Sequence[Mapping[str, Any]], asked: Mapping[str, str]) -> dict[str, Any]:
    """Returns a page of the models with these cards.

    asked: the query: `limit`, and the id that the page follows or precedes.  Raises ApiError.
    """
    names = [str(card["id"]) for card in cards]
    limit = asked.get("limit", str(USUAL))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MOST):
        raise invalid(f"limit: {echo(limit)} is no number from 1 to {MOST}.", "limit")
    first, last = 0, len(cards)
    if "after_id" in asked:
        first = _place(names, asked["after_id"], "after_id") + 1
    if "before_id" in asked:
        last = _place(names, asked["before_id"], "before_id")
        first = max(first, last - int(limit))
    shown = cards[first : min(last, first + int(limit))]
    more = first > 0 if "before_id" in asked else first + len(shown) < len(cards)
    return {
        "data": [model(card) for card in shown],
        "has_more": more,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def model(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model with this card."""
    created = datetime.fromtimestamp(card["created"], UTC)
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": card["max_model_len"],
        "max_tokens": card["max_model_len"],
    }


def _place(names: Sequence[str], name: str, field: str) -> int:
    if name not in names:
        raise invalid(f"{field}: {echo(name)} is not one of the models.", field)
    return names.index(name)
