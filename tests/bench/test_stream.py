from __future__ import annotations

import json
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.bench.stream import EventSplitter, StreamChunk, StreamedAnswer, error_message

DECODER = msgspec.json.Decoder(StreamChunk, strict=False)


def event(document: object, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(document).encode() + end


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text(max_size=5), max_size=6),
    st.integers(0, 2**32),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n: a comment\nevent: x\nid: 1\n\n"]),
)
def test_events_come_in_whatever_pieces(texts: list[str], seed: int, end: bytes) -> None:
    whole = b"".join(event(text, end) for text in texts)
    random, events, found = Random(seed), EventSplitter(), []
    while whole:
        cut = random.randint(1, len(whole))
        found += events.feed(whole[:cut])
        whole = whole[cut:]
    assert [json.loads(one) for one in found] == texts


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.binary(max_size=40) | st.sampled_from([b"data: ", b"\n\n", b'{"choices":[', b"}]}"]), max_size=8
    )
)
def test_no_server_can_say_what_ends_the_generator(pieces: list[bytes]) -> None:
    for status in (200, 500):
        found = StreamedAnswer(DECODER)
        found.start(status)
        for piece in pieces:
            found.read(piece, 1.0)
        assert isinstance(found.refusal, str)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"error":' + b"[" * 100_000, b"\xff", b'{"usage":{"prompt_tokens":1e99}}']
)
def test_chunks_that_are_none(text: bytes) -> None:
    found = answer(b"data: " + text + b"\n\n")
    assert "not of this API" in found.failure
    assert error_message(text)


def answer(*events: object, status: int = 200, most: int | None = None) -> StreamedAnswer:
    """An answer whose n-th event was read at n seconds."""
    found = StreamedAnswer(DECODER, most)
    found.start(status)
    for now, one in enumerate(events, 1):
        found.read(one if isinstance(one, bytes) else event(one), float(now))
    return found


def said(text: str, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


def test_times_are_of_chunks_with_tokens() -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    found = answer(role, said("a"), said("b"), {"choices": [], "usage": usage}, b"data: [DONE]\n\n")
    assert (found.first, found.last, list(found.stamps), found.text) == (2.0, 3.0, [2.0, 3.0], "ab")
    assert found.finished
    assert found.usage is not None
    assert found.usage.completion_tokens == 3
    assert found.usage.prompt_tokens_details is not None
    assert found.usage.prompt_tokens_details.cached_tokens == 2


def test_a_last_token_without_text_is_as_late_as_the_reason_to_finish() -> None:
    ending = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    found = answer({"choices": [{"index": 0, "text": "a"}]}, ending)
    assert (found.first, found.last, len(found.stamps), found.finished) == (1.0, 2.0, 1, True)


@pytest.mark.parametrize(
    "delta",
    [{"reasoning_content": "x"}, {"reasoning": "x"}, {"tool_calls": [{"index": 0}], "content": None}],
)
def test_thoughts_and_calls_are_tokens_too(delta: dict[str, object]) -> None:
    assert answer({"choices": [{"index": 0, "delta": delta}]}).first == 1.0


def test_what_is_no_token() -> None:
    found = answer({"choices": [{"index": 0, "delta": {"content": None, "tool_calls": []}}]}, b": ping\n\n")
    assert found.first is None
    assert not found.failure


def test_the_client_may_have_heard_enough() -> None:
    assert not answer(said("a"), most=2).enough
    assert answer(said("a"), said("b"), most=2).enough
    at_once = answer(event(said("a")) + event(said("b")) + event(said("c")), most=2)
    assert at_once.text == "ab"


DONE = b"data: [DONE]\n\n"
USAGE = {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}


def ended(*events: object, status: int = 200) -> tuple[str, str] | None:
    """Returns the failure of an answer whose connection ended normally."""
    found = answer(*events, status=status)
    found.end(99.0)
    return found.reported_failure() or found.missing()


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "engine died", "code": 500}},
        {"error": "engine died"},
        {"error": {"message": "engine died"}, "choices": []},
        {"object": "error", "message": "engine died", "type": "InternalServerError", "code": 500},
        {"detail": "engine died"},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "error": "engine died"}]},
        b'event: error\ndata: {"message": "engine died"}\n\n',
        b"event: error\ndata: engine died\n\n",
        b'error: {"code": 500, "message": "engine died"}\n\n',
        b"data: {half\n\n",
        {"error": {"message": ""}},
        b"event: error\ndata:\n\n",
    ],
)
def test_errors_in_the_stream(event: object) -> None:
    """Errors as OpenAI, vLLM, FastAPI, OpenRouter, text-generation-inference and llama.cpp write them."""
    found = ended(said("a"), event, said("b", finish_reason="stop"), DONE)
    assert found is not None
    assert found[0] == "error in stream"
    assert any(words in found[1] for words in ("engine died", "not of this API", "without a message"))


@pytest.mark.parametrize("reason", ["error", "abort", "content_filter", "cancelled", "timeout"])
def test_an_answer_that_was_given_up_is_no_answer(reason: str) -> None:
    told = ended(said("a"), said("b", finish_reason=reason), USAGE, DONE)
    assert told == (f"finish_reason {reason}", "the server ended the answer")


@pytest.mark.parametrize(
    "reason", ["stop", "length", "tool_calls", "function_call", "eos_token", "STOP", "end_turn"]
)
def test_reasons_to_finish_an_answer_that_is_whole(reason: str) -> None:
    assert ended(said("a"), said("b", finish_reason=reason)) is None


def test_a_stream_is_whole_with_its_end_mark_or_a_reason_for_each_choice() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "b"}}]}
    last = event(said("", finish_reason="stop"))
    assert ended(said("a"), DONE) is None
    assert ended(said("a"), last) is None
    assert ended(said("a"), last.rstrip()) is None
    for cut in (
        [said("a"), said("b")],
        [said("a"), said("b"), USAGE],
        [said("a", finish_reason=""), said("b", finish_reason="null")],
        [said("a"), other, last],
        [said("a"), last[:20]],
        [],
    ):
        assert ended(*cut) == ("cut", "the stream ended before the answer did")


def test_an_answer_that_is_no_stream() -> None:
    assert ended(b'{"error": {"message": "engine died"}}') == ("no stream", "engine died")
    assert ended(b"<html>\n<p>busy</html>") == ("no stream", "<html> <p>busy</html>")
    assert ended(b"busy", status=503) == ("503", "busy")
    assert ended(said("", finish_reason="length"), DONE) == ("empty", "an answer without a token")


@pytest.mark.parametrize(
    "event",
    [
        {"choices": None},
        {"choices": None, "usage": None, "error": None, "detail": None},
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {},
        {"type": "ping"},
        {"choices": [{"index": None, "delta": None, "text": None, "finish_reason": None}]},
        {"choices": [{"delta": {"role": "assistant", "content": None, "refusal": None}, "logprobs": None}]},
        {"usage": {"prompt_tokens": 5.0, "completion_tokens": None}},
        {"usage": {}},
        b": keep-alive\n\n",
        b":\n\nevent: ping\ndata:\n\n",
        b"id: 7\nretry: 100\n\n",
        b"\xef\xbb\xbf\n",
    ],
)
def test_chunks_of_other_servers_do_no_harm(event: object) -> None:
    found = answer(event, said("a"), event, said("b"), event, said("", finish_reason="stop"), USAGE, DONE)
    assert found.reported_failure() is None
    assert found.missing() is None
    assert (list(found.stamps), found.last) == ([2.0, 4.0], 6.0)
    assert found.usage is not None
    assert found.usage.completion_tokens == 2


def test_a_corepipe_predicts() -> None:
    found = answer({"choices": [], "corepipe": {"time_to_first_token_ms": 2.5, "emulated": True}})
    assert found.device is not None
    assert found.device.time_to_first_token_ms == 2.5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such\\n model"}}', "no such model"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "x"}', "{'detail': 'x'}"),
        (b"<html>" + b"x" * 1000, "<html>" + "x" * 194),
        (b"\xff", "�"),
    ],
)
def test_what_a_refusal_says(body: bytes, message: str) -> None:
    found = StreamedAnswer(DECODER)
    found.start(404)
    found.read(body, 0.0)
    assert found.refusal == error_message(body) == message
