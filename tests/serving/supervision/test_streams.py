from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.messages import Output, TokenLogprobs
from corepipe.serving.supervision.client import MAX_PENDING, OutputStream, Streams, merge_outputs
from tests.serving.supervision.test_client import collect

news = st.builds(
    Output,
    id=st.just("a"),
    tokens=st.lists(st.integers(0, 99), max_size=3),
    logprobs=st.lists(st.builds(TokenLogprobs, st.integers(0, 9), st.just(-1.0)), max_size=2),
    cached=st.integers(0, 3),
)


@settings(deadline=None)
@given(st.lists(news, min_size=1, max_size=6), st.booleans())
def test_merging_loses_nothing(outputs: list[Output], ended: bool) -> None:
    last = Output("a", [7], finish_reason="stop", preemptions=2) if ended else Output("a", [7])
    merged = merge_outputs([*outputs, last])
    assert merged.tokens == [token for output in outputs for token in output.tokens] + [7]
    assert merged.logprobs == [logprob for output in outputs for logprob in output.logprobs]
    assert merged.cached == max(output.cached for output in outputs)
    assert (merged.finish_reason, merged.preemptions) == (last.finish_reason, last.preemptions)


async def test_a_slow_consumer_gets_merged_news() -> None:
    aborted, streams = list[str](), Streams()
    stream = streams.open("a", aborted.extend)
    for token in range(5):
        streams.push([Output("a", [token])])
    streams.push([Output("a", [5], finish_reason="length")])
    assert [output async for output in stream] == [Output("a", [0, 1, 2, 3, 4, 5], finish_reason="length")]
    assert aborted == []


async def test_a_waiting_consumer_is_woken_and_the_stream_ends() -> None:
    aborted, streams = list[str](), Streams()
    stream = streams.open("a", aborted.extend)
    reader = asyncio.create_task(collect(stream))
    for token in range(3):
        await asyncio.sleep(0)
        streams.push([Output("a", [token]), Output("unknown", [9])])
        await asyncio.sleep(0)
    streams.push([Output("a", finish_reason="stop")])
    outputs = await reader
    assert [token for output in outputs for token in output.tokens] == [0, 1, 2]
    assert outputs[-1].finish_reason == "stop"
    await stream.aclose()
    assert aborted == []


async def test_closing_and_cancelling_abort_the_request_once() -> None:
    aborted, streams = list[str](), Streams()
    closed = streams.open("closed", aborted.extend)
    await closed.aclose()
    await closed.aclose()
    cancelled = streams.open("cancelled", aborted.extend)
    reader = asyncio.create_task(collect(cancelled))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert aborted == ["closed", "cancelled"]
    assert await collect(closed) == []


async def test_failing_ends_every_open_stream() -> None:
    aborted, streams = list[str](), Streams()
    open_streams = [streams.open(name, aborted.extend) for name in "ab"]
    streams.push([Output("a", [1])])
    streams.fail("engine died")
    for stream in open_streams:
        (output,) = await collect(stream)
        assert (output.finish_reason, output.error) == ("error", "engine died")
    streams.open("a", aborted.extend)


def test_an_open_id_cannot_be_opened_again() -> None:
    streams = Streams()
    streams.open("a", list)
    with pytest.raises(ValueError, match="already open"):
        streams.open("a", list)


async def test_news_that_nobody_reads_become_one_piece() -> None:
    stream = OutputStream("r", lambda ids: None)
    for number in range(10 * MAX_PENDING):
        stream.push(Output("r", [number]))
        assert len(stream._pending) <= MAX_PENDING
    assert (await anext(stream)).tokens == list(range(10 * MAX_PENDING))
