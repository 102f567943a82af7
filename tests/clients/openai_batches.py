"""openai, the Python SDK: files and batches."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
from openai import OpenAI
from openai.types import Batch

from tests.clients.rows import KEY, MODEL, URL, Rows, raises
from tests.clients.shapes import QUESTION

row = Rows()
client = OpenAI(base_url=URL, api_key=KEY, max_retries=0)
CHAT = "/v1/chat/completions"
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": 8,
}


def lines(count: int, **change: Any) -> bytes:
    made = [
        {"custom_id": f"line-{at}", "method": "POST", "url": CHAT, "body": {**BODY, **change}}
        for at in range(count)
    ]
    return "\n".join(map(json.dumps, made)).encode()


def started(data: bytes, **more: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more)


def ended(batch: Batch) -> Batch:
    """Polls as the SDK's users do, until the batch is over."""
    while batch.status in {"validating", "in_progress", "finalizing", "cancelling"}:
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def written(file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    return [json.loads(line) for line in client.files.content(file).text.splitlines()]


@row
def files() -> None:
    """files: create, retrieve, content, list, delete"""
    data = lines(3)
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(data), "in.jsonl", "batch")
    assert client.files.retrieve(file.id).id == file.id
    assert client.files.content(file.id).read() == data
    assert file.id in [one.id for one in client.files.list(purpose="batch", limit=1)]
    assert client.files.delete(file.id).deleted
    with raises(openai.NotFoundError):
        client.files.retrieve(file.id)


@row
def batch() -> None:
    """batches: create, retrieve, and the answers of the same requests sent one by one"""
    over = ended(started(lines(5), metadata={"of": "rows"}))
    assert (over.status, over.metadata) == ("completed", {"of": "rows"})
    assert over.request_counts is not None
    assert (over.request_counts.total, over.request_counts.completed) == (5, 5)
    answers = written(over.output_file_id)
    assert {one["custom_id"] for one in answers} == {f"line-{at}" for at in range(5)}
    alone = client.chat.completions.create(**BODY).choices[0].message.content  # type: ignore[call-overload]
    bodies = [one["response"]["body"] for one in answers]
    assert {body["choices"][0]["message"]["content"] for body in bodies} == {alone}
    assert over.id in [one.id for one in client.batches.list(limit=2)]


@row
def wrong_lines() -> None:
    """batches: lines that are refused, or are no JSON, have their errors in the error file"""
    over = ended(started(lines(2, temperature=9) + b"\nno json"))
    assert over.request_counts is not None
    assert over.request_counts.failed == 3
    errors = written(over.error_file_id)
    assert {one["custom_id"] for one in errors} == {"line-0", "line-1", None}
    assert {one["response"]["status_code"] for one in errors} == {400}


@row
def wrong_file() -> None:
    """batches: a file in which a custom_id is twice fails, with the line"""
    over = ended(started(lines(2) + b"\n" + lines(1)))
    assert over.status == "failed"
    assert over.errors is not None
    assert over.errors.data
    assert over.errors.data[0].line == 3


@row
def cancel() -> None:
    """batches.cancel"""
    batch = client.batches.cancel(started(lines(200, max_tokens=200)).id)
    assert batch.status in {"cancelling", "cancelled"}
    assert ended(batch).status == "cancelled"


@row
def responses_in_a_batch() -> None:
    """batches of /v1/responses"""
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 8}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    over = ended(
        client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    )
    assert written(over.output_file_id)[0]["response"]["body"]["object"] == "response"


@row.refused("purpose", "nothing here is fine-tuned")
def purpose() -> None:
    """files of another purpose"""
    client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")


if __name__ == "__main__":
    row.run()
