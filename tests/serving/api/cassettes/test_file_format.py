"""A cassette's file gives back what was sent, byte for byte, is YAML, and can be read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from corepipe.serving.api.cassettes.exchange import (
    AnswerPiece,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
)
from corepipe.serving.api.cassettes.file_format import WIDTH, MalformedCassette, fold, read, to_text, unfold

MOST = 1 << 25
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
ASKED = RecordedRequest("POST", "/v1/chat/completions", b'{"model":"tiny"}')

printable = st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=("Cs", "Cc", "Zl", "Zp"))
texts = st.text(printable | st.sampled_from('\n\\" \t'), max_size=400)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=5)
spelled = st.sampled_from(
    (msgspec.json.encode, lambda v: json.dumps(v).encode(), lambda v: json.dumps(v, indent=1).encode())
)
times = st.floats(0, 1e6).map(lambda at: round(at, 1))


def from_text(data: bytes, most: int) -> RecordedExchange:
    """Returns the exchange of a file."""
    return read(data, most).exchange()


def exchange(answered: RecordedAnswer, **device: Any) -> RecordedExchange:
    return RecordedExchange(ASKED, answered, device)


@given(values, st.integers(0, 3))
def test_what_is_folded_comes_back_and_is_yaml(value: Any, indent: int) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    folded = fold(text)
    assert unfold(folded.encode()) == text.encode()
    assert yaml.safe_load(folded) == yaml.safe_load(text)


@given(objects, spelled, times)
def test_a_whole_answer_comes_back_byte_for_byte(value: dict[str, Any], spell: Any, at: float) -> None:
    one = exchange(RecordedAnswer(200, JSON, (AnswerPiece(at, spell(value)),)))
    assert from_text(to_text(one), MOST) == one


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=300))
def test_an_answer_that_is_no_json_comes_back(text: str) -> None:
    one = exchange(RecordedAnswer(200, JSON, (AnswerPiece(0.0, text.encode()),)))
    assert from_text(to_text(one), MOST) == one


odd = st.sampled_from([b"data: [DONE]\n\n", b": ping\n\n", b"event: x\ndata: {}\n\n", b"\n\n", b"data: {"])
spelled_events = objects.map(lambda v: json.dumps(v).encode())
plain_events = objects.map(lambda v: msgspec.json.encode({"id": "x", "created": 1, **v}))
events = (plain_events | spelled_events).map(b"data: %b\n\n".__mod__) | odd
pieces = st.tuples(times, st.lists(events, min_size=1, max_size=3).map(b"".join))


@given(st.lists(pieces, max_size=6))
def test_a_stream_comes_back_piece_for_piece(sent: list[tuple[float, bytes]]) -> None:
    one = exchange(RecordedAnswer(200, EVENTS, tuple(AnswerPiece(*piece) for piece in sent)))
    assert from_text(to_text(one), MOST) == one


@given(objects, spelled, st.booleans())
def test_a_request_comes_back_but_for_the_space_between_its_tokens(
    value: Any, spell: Any, device: bool
) -> None:
    asked = RecordedRequest("POST", "/v1/completions", spell(value), device)
    answered = RecordedAnswer(200, JSON, (AnswerPiece(0.0, b"{}"),))
    again = from_text(to_text(RecordedExchange(asked, answered)), MOST).request
    assert (again.method, again.path, again.device) == (asked.method, asked.path, device)
    assert again.canonical == asked.canonical
    assert again.key == asked.key


def test_requests_are_told_apart_by_what_they_ask_alone() -> None:
    same = (b'{"a":1,"b":[{"c":"\\u00e9","d":2}]}', '{ "b": [{"d": 2, "c": "é"}],\n "a": 1 }'.encode())
    assert len({RecordedRequest("POST", "/v1/completions", body).key for body in same}) == 1
    others = [
        RecordedRequest("POST", "/v1/completions", b'{"a":1}'),
        RecordedRequest("POST", "/v1/completions", b'{"a":2}'),
        RecordedRequest("POST", "/v1/completions", b'{"a":1}', device=True),
        RecordedRequest("POST", "/v1/chat/completions", b'{"a":1}'),
        RecordedRequest("GET", "/v1/models"),
        RecordedRequest("GET", "/v1/models/a"),
    ]
    assert len({asked.key for asked in others}) == len(others)


def test_a_stream_has_a_line_an_event_and_says_once_what_all_have() -> None:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "tiny"}
    deltas = [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo\n"}]
    events = [head | {"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    told = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    sent = {1.5: told[0] + told[1], 2.5: told[2], 3.0: b"data: [DONE]\n\n"}
    pieces = tuple(AnswerPiece(at, data) for at, data in sent.items())
    text = to_text(exchange(RecordedAnswer(200, EVENTS, pieces), emulated=True)).decode()
    assert text == TOLD


TOLD = """\
{
  "cassette": 1,
  "request": {
    "method": "POST",
    "path": "/v1/chat/completions",
    "body": {
      "model": "tiny"
    }
  },
  "answer": {
    "status": 200,
    "headers": {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-cache"
    },
    "times_ms": [1.5, 2.5, 3.0],
    "common": {
      "id": "chatcmpl-1",
      "object": "chat.completion.chunk",
      "created": 5,
      "model": "tiny"
    },
    "events": [
      [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
       {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}],
      [{"choices": [{"index": 0, "delta": {"content": "lo\\n"}}]}],
      ["data: [DONE]\\n\\n"]
    ]
  },
  "device": {
    "emulated": true
  }
}
"""


def test_a_long_text_has_lines() -> None:
    said = "First, a line.\n    Then code, which is indented.\n\nAnd " + "very " * 60 + "long ones."
    asked = RecordedRequest("POST", "/v1/completions", msgspec.json.encode({"prompt": said}))
    text = to_text(RecordedExchange(asked, RecordedAnswer(200, JSON, (AnswerPiece(0.0, b"{}"),)))).decode()
    assert max(map(len, text.split("\n"))) < WIDTH + 20
    assert "        \\    Then code, which is indented.\\n\\\n        \\n\\\n        And very" in text
    assert yaml.safe_load(text)["request"]["body"]["prompt"] == said


WRONG = {
    "no JSON": (b"{", "truncated"),
    "another version": (
        to_text(exchange(RecordedAnswer(200, JSON, ()))).replace(b'"cassette": 1', b'"cassette": 2'),
        "cassette",
    ),
    "a field that is none": (TOLD.replace('"status"', '"statu": 1, "status"').encode(), "statu"),
    "a status that is none": (TOLD.replace("200", "99").encode(), "status"),
    "too few times": (TOLD.replace("2.5, ", "").encode(), "times_ms"),
    "a time that is none": (TOLD.replace("2.5", "-1").encode(), "times_ms"),
    "another type": (TOLD.replace("text/event-stream", "text/html").encode(), "content-type"),
    "a header within a header": (TOLD.replace("no-cache", "no\\r\\nSet-Cookie: a").encode(), "cache-control"),
    "another header": (TOLD.replace("cache-control", "set-cookie").encode(), "set-cookie"),
    "an event that is a number": (TOLD.replace('["data: [DONE]\\n\\n"]', "[5]").encode(), "object"),
    "no UTF-8": (TOLD.encode().replace(b"Hel", b"\xff"), "utf-8"),
    "events of no stream": (
        TOLD.replace("text/event-stream; charset=utf-8", "application/json").encode(),
        "events",
    ),
    "nesting": (TOLD.replace('"tiny"', "[" * 100_000).encode(), "deep"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_cassette(name: str) -> None:
    data, word = WRONG[name]
    with pytest.raises(MalformedCassette, match=f"(?i){word}"):
        from_text(data, MOST)


def test_what_is_in_common_does_not_make_a_small_file_a_huge_answer() -> None:
    bomb = TOLD.replace("chatcmpl-1", "x" * 100_000)
    bomb = bomb.replace('["data: [DONE]\\n\\n"]', ",".join(["[{}]"] * 10_000))
    with pytest.raises(MalformedCassette, match="larger"):
        from_text(bomb.encode(), MOST)


def test_bytes_that_are_no_text_are_not_written() -> None:
    with pytest.raises(MalformedCassette, match="no text"):
        to_text(exchange(RecordedAnswer(200, JSON, (AnswerPiece(0.0, b"\xff"),))))
