"""Responses from the real server, read as its clients read them."""

from __future__ import annotations

import json
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ENDS = ("response.completed", "response.incomplete", "response.failed")
CLOCK = ("id", "created_at", "completed_at")
"""Fields that differ from one answer to the next."""


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream: each fits the openai package's type, and their numbers follow each other."""
    events = []
    for block in text.split("\n\n"):
        if not block:
            continue
        first, _, data = block.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        EVENTS.validate_python(event, strict=False)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def create(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/responses", json={"model": "tiny", **fields})


def whole(url: str, **fields: Any) -> dict[str, Any]:
    answer = create(url, **fields)
    assert answer.status_code == 200, answer.text
    read = answer.json()
    Response.model_validate(read, strict=False)
    return read


def streamed(url: str, **fields: Any) -> list[dict[str, Any]]:
    answer = create(url, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def timeless(response: dict[str, Any]) -> dict[str, Any]:
    """A response without its ids and times; ids of items and calls are made from the response's."""
    text = json.dumps({key: value for key, value in response.items() if key not in CLOCK})
    own = response["id"].removeprefix("resp_")
    shown = json.loads(text.replace(own, "X"))
    for item in shown["output"]:
        if "call_id" in item:
            item["call_id"] = "Y"
    return shown


def joined(events: list[dict[str, Any]], kind: str) -> str:
    return "".join(one["delta"] for one in events if one["type"] == f"response.{kind}.delta")
