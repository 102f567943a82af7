"""Redaction rules apply to requests and answers, at every place and however a stream has split the text."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.serving.api.cassettes.exchange import (
    AnswerPiece,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
)
from corepipe.serving.api.cassettes.file_format import to_text
from corepipe.serving.api.cassettes.redaction import Redaction, read_redaction
from corepipe.serving.api.cassettes.replacement import RedactionRule, parse_path, places

SECRET = "sk-4f9a8b7c6d5e"
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
RULES = """
[[rule]]
regex = 'sk-[0-9a-f]{12}'
replace = "KEY"

[[rule]]
path = "$.user"

[[rule]]
path = "$..metadata"

[[rule]]
path = "$.messages[*].content"
regex = '[0-9]{4}-[0-9]{2}-[0-9]{2}'
replace = "DATE"
"""


def rules(folder: Path, text: str = RULES) -> Redaction:
    file = folder / "rules.toml"
    file.write_text(text)
    return read_redaction(file)


@pytest.fixture
def redaction(tmp_path: Path) -> Redaction:
    return rules(tmp_path)


def redacted(
    redaction: Redaction, body: dict[str, Any], *answer: bytes, streamed: bool = False, status: int = 200
) -> tuple[dict[str, Any], str]:
    """Returns the request's body and the answer's as they are recorded."""
    pieces = tuple(AnswerPiece(float(at), data) for at, data in enumerate(answer))
    asked = RecordedRequest("POST", "/v1/chat/completions", json.dumps(body).encode())
    answered = RecordedAnswer(status, EVENTS if streamed else JSON, pieces)
    done = redaction.exchange(RecordedExchange(asked, answered))
    assert SECRET.encode() not in to_text(done)
    return json.loads(done.request.body), done.answer.body.decode()


def test_requests_and_answers(redaction: Redaction) -> None:
    body, answer = redacted(
        redaction,
        {
            "user": "alice@example.org",
            "messages": [{"role": "user", "content": f"Of 2026-11-22: {SECRET}, {SECRET}."}],
            "stop": ["2026-11-22"],
            "deep": [{"metadata": {"a": 1}, SECRET: 5}],
            "number": 1.50,
        },
        json.dumps({"choices": [{"message": {"content": f"It is {SECRET} of alice@example.org"}}]}).encode(),
    )
    assert body == {
        "user": "REDACTED",
        "messages": [{"role": "user", "content": "Of DATE: KEY, KEY."}],
        "stop": ["2026-11-22"],
        "deep": [{"metadata": "REDACTED", "KEY": 5}],
        "number": 1.5,
    }
    assert json.loads(answer) == {"choices": [{"message": {"content": "It is KEY of REDACTED"}}]}


def event(delta: object, index: int = 0) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": {"content": [{"token": "sk"}]}}
    return b"data: " + json.dumps({"id": "a", "choices": [choice]}).encode() + b"\n\n"


@given(st.lists(st.integers(0, len(SECRET) + 12), max_size=6), st.data())
def test_a_secret_that_a_stream_has_cut_anywhere(cuts: list[int], data: st.DataObject) -> None:
    """The text comes in two choices that alternate in any order."""
    text = f"say: {SECRET} again"
    bounds = [0, *sorted(cuts), len(text)]
    parts = [text[a:b] for a, b in pairwise(bounds)]
    turns = data.draw(st.permutations([0] * len(parts) + [1] * len(parts)))
    left = [iter(parts), iter(parts)]
    events = [event({"content": next(left[turn])}, turn) for turn in turns]
    redaction = Redaction([RedactionRule(None, re.compile("sk-[0-9a-f]{12}"), "KEY")])
    _, answer = redacted(redaction, {}, *events, b"data: [DONE]\n\n", streamed=True)
    told = ["", ""]
    for line in answer.split("\n\n")[:-2]:
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        told[choice["index"]] += choice["delta"]["content"]
        assert choice["logprobs"] is None, "tokens spell what was replaced"
    assert told == ["say: KEY again"] * 2
    assert answer.endswith("data: [DONE]\n\n")


@given(st.lists(st.integers(0, len(SECRET) + 12), max_size=6))
def test_a_secret_in_the_blocks_of_a_message(cuts: list[int]) -> None:
    """Each block is a text of its own; the names of events stay."""
    text = f"say: {SECRET} again"
    bounds = [0, *sorted(cuts), len(text)]
    events = [
        {"type": "content_block_delta", "index": block, "delta": {"type": "text_delta", "text": text[a:b]}}
        for block in (0, 1)
        for a, b in pairwise(bounds)
    ]
    redaction = Redaction([RedactionRule(None, re.compile("sk-[0-9a-f]{12}|againsay"), "KEY")])
    sent = [b"event: content_block_delta\ndata: %b\n\n" % msgspec.json.encode(one) for one in events]
    told = ["", ""]
    for one in redacted(redaction, {}, *sent, streamed=True)[1].split("\n\n")[:-1]:
        name, _, data = one.partition("\n")
        assert name == "event: content_block_delta"
        event = json.loads(data.removeprefix("data: "))
        told[event["index"]] += event["delta"]["text"]
    assert told == ["say: KEY again"] * 2


def test_arguments_of_a_call_and_errors_in_a_stream(redaction: Redaction) -> None:
    calls = [
        event({"tool_calls": [{"index": 1, "function": {"arguments": part}}]})
        for part in ('{"k":"sk-4f9a', '8b7c6d5e"}')
    ]
    failed = b'data: {"error":{"message":"no ' + SECRET.encode() + b'"}}\n\n'
    _, answer = redacted(redaction, {}, *calls, failed, b"data: " + SECRET.encode(), streamed=True)
    assert '{\\"k\\":\\"KEY' in answer
    assert '"no KEY"' in answer
    assert answer.endswith("data: KEY")


def test_a_refusal_does_not_quote_what_was_replaced(redaction: Redaction) -> None:
    quoted = json.dumps({"error": {"message": "bad user: 'alice@exa…'", "param": "user"}}).encode()
    _, answer = redacted(redaction, {"user": "alice@example.org"}, quoted, status=400)
    assert json.loads(answer) == {"error": {"message": "REDACTED", "param": "user"}}


def test_a_path_of_a_request(redaction: Redaction) -> None:
    asked = redaction.redacted_request(RecordedRequest("GET", f"/v1/models/{SECRET}"))
    assert asked.path == "/v1/models/KEY"


def test_what_no_rule_names_stays_byte_for_byte(redaction: Redaction) -> None:
    asked = RecordedRequest("POST", "/v1/completions", b'{ "b":1.0, "a":"\\u0041" }')
    answered = RecordedAnswer(200, JSON, (AnswerPiece(0.0, b'{"a": 1e3, "logprobs": [1]}'),))
    assert redaction.exchange(RecordedExchange(asked, answered)) == RecordedExchange(asked, answered)


def test_requests_that_differ_in_what_is_replaced_are_the_same(redaction: Redaction) -> None:
    bodies = [json.dumps({"user": user, "n": 1}).encode() for user in ("a", "b", "REDACTED")]
    asked = [RecordedRequest("POST", "/v1/chat/completions", body) for body in bodies]
    assert len({redaction.redacted_request(one).key for one in asked}) == 1


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$.a", [1]),
        ("$.b[*].c", [2, 3]),
        ("$.b[1].c", [3]),
        ("$.b[2]", []),
        ("$.*", [1, [{"c": 2}, {"c": 3, "d": {"c": 4}}], 5]),
        ("$..c", [2, 3, 4]),
        ("$['x y']", [5]),
        ("$.a.b", []),
        ("$..[0]", [{"c": 2}]),
    ],
)
def test_paths(path: str, found: list[object]) -> None:
    value = {"a": 1, "b": [{"c": 2}, {"c": 3, "d": {"c": 4}}], "x y": 5}
    assert [container[at] for container, at in places(value, parse_path(path))] == found


WRONG = {
    "": "must have tables",
    "rule = 1": "must have tables",
    "[[rules]]\npath='$.a'": "must have tables",
    "[[rule]]\nreplace='a'": "rule 1: must have a path, a regex or both",
    "[[rule]]\npath='$.a'\n[[rule]]\npath='a.b'": "rule 2: 'a.b' is not a JSON path: it must begin with",
    "[[rule]]\npath='$.a b'": "from ' b' on",
    "[[rule]]\npath='$'": "name the part to replace",
    "[[rule]]\nregex='('": "rule 1: regex '(': missing ), unterminated subpattern",
    "[[rule]]\nregex='a*'": "matches an empty text",
    "[[rule]]\nregex='a'\nwith='b'": "'with' is none of",
    "[[rule]]\nregex=1": "regex must be a text",
    "[[rule]\n": "rules.toml: ",
    "#" + "x" * 70_000: "larger",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_rules_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError) as caught:
        rules(tmp_path, text)
    assert caught.value.message.startswith(f"--record-redact {tmp_path / 'rules.toml'}: ")
    assert WRONG[text] in caught.value.message


def test_a_file_of_rules_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--record-redact .*: No such file"):
        read_redaction(tmp_path / "none")
