from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine import channel
from corepipe.engine.channel import (
    HEADER,
    FrameDecoder,
    FrameError,
    encode_frame,
)
from corepipe.engine.messages import (
    MAX_FRAME,
    Abort,
    Command,
    DeviceTimes,
    Event,
    Failed,
    LoadProgress,
    Output,
    Outputs,
    Shutdown,
    Start,
    Submit,
    TokenLogprobs,
)
from corepipe.engine.sampling_parameters import TokenSampling

ids = st.text(max_size=8)
tokens = st.lists(st.integers(0, 2**31 - 1), max_size=20)
floats = st.floats(allow_nan=False, width=64)

samplings = st.builds(
    TokenSampling,
    temperature=floats,
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), floats, max_size=4),
    logprobs=st.none() | st.integers(0, 20),
)
commands = st.one_of(
    st.builds(Submit, id=ids, prompt=tokens, max_tokens=st.integers(1, 9), sampling=samplings),
    st.builds(Abort, ids=st.lists(ids, max_size=5)),
    st.just(Shutdown()),
)
logprobs = st.builds(
    TokenLogprobs,
    token=st.integers(0, 9),
    logprob=floats,
    top=st.lists(st.tuples(st.integers(0, 9), floats), max_size=3),
)
outputs = st.builds(
    Output,
    id=ids,
    tokens=tokens,
    logprobs=st.lists(logprobs, max_size=3),
    finish_reason=st.none() | st.sampled_from(["stop", "length"]),
    device=st.none() | st.builds(DeviceTimes, floats, floats, floats, st.none() | floats, floats),
)
events = st.one_of(
    st.builds(Outputs, outputs=st.lists(outputs, max_size=4)),
    st.builds(LoadProgress, what=ids, done=floats),
    st.builds(Failed, message=ids, user_error=st.booleans()),
)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Cuts the stream at these places modulo its length."""
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


@pytest.mark.parametrize(("messages", "kind"), [(commands, Command), (events, Event)])
@settings(deadline=None)
@given(data=st.data())
def test_messages_survive_however_the_stream_is_cut(
    messages: st.SearchStrategy[object], kind: Any, data: st.DataObject
) -> None:
    sent = data.draw(st.lists(messages, max_size=6))
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=8))
    decoder = FrameDecoder[Any](kind)
    stream = b"".join(encode_frame(message) for message in sent)
    received = [message for piece in pieces(stream, cuts) for message in decoder.feed(piece)]
    assert decoder.missing == HEADER, "the stream ends within a frame"
    assert received == sent


def test_a_frame_over_the_limit_is_refused_before_it_comes() -> None:
    with pytest.raises(FrameError, match="exceeds"):
        FrameDecoder[Command](Command).feed((MAX_FRAME + 1).to_bytes(4, "little"))


def test_a_message_over_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_FRAME", 64)
    with pytest.raises(FrameError, match="exceeds"):
        encode_frame(Abort(["x" * 64]))


@pytest.mark.parametrize(
    "message",
    [
        {"type": "Nonsense"},
        {"type": "Submit", "id": "a"},
        {"type": "Submit", "id": "a", "prompt": ["text"], "max_tokens": 1},
        [1, 2, 3],
    ],
)
def test_what_is_no_command_is_refused(message: object) -> None:
    body = msgspec.msgpack.encode(message)
    with pytest.raises(FrameError, match="not a message"):
        FrameDecoder[Command](Command).feed(len(body).to_bytes(4, "little") + body)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_give_messages_or_a_frame_error(data: bytes) -> None:
    decoder = FrameDecoder[Command](Command)
    try:
        decoder.feed(data)
    except FrameError:
        return


def test_missing_never_asks_beyond_the_frame() -> None:
    stream = encode_frame(Abort(["abc"])) + encode_frame(Shutdown())
    decoder = FrameDecoder[Command](Command)
    received: list[Command] = []
    at = 0
    while not received:
        end = at + decoder.missing
        received += decoder.feed(stream[at:end])
        at = end
    assert received == [Abort(["abc"])]
    assert stream[at:] == encode_frame(Shutdown())


def test_text_that_is_no_utf_8_and_nesting_without_end_are_frame_errors() -> None:
    for body in (b"\x82\xa4type\xa5Abort\xa3ids\x91\xa1\xff", b"\x81\xa1a" + b"\x91" * 100_000):
        with pytest.raises(FrameError, match="not a message of this protocol"):
            FrameDecoder[Start](Start).feed(len(body).to_bytes(4, "little") + body)


def test_what_was_not_computed_takes_no_byte() -> None:
    news = Output("a", [5])
    assert msgspec.msgpack.encode(news) == msgspec.msgpack.encode({"id": "a", "tokens": [5]})
    assert msgspec.msgpack.encode(Output("a")) == msgspec.msgpack.encode({"id": "a"})
