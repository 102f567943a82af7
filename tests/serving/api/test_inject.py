"""Injected faults, as clients see them over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import time

import httpx
import openai
import pytest

from corepipe.serving.api.http.inject import SpoiledSend
from corepipe.serving.faults import RequestFault
from tests.servers import until
from tests.serving.http_support import FOREVER, FakeEngine, openai_client, running, saying

BODY = {"model": "tiny", "prompt": "Hi there", "max_tokens": 30}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30}


def faulty(inject, **more):
    return running(FakeEngine(saying("Hello world. ", pause=0.001)), inject=inject, **more)


def ask(url, **fields):
    return httpx.post(url + "/v1/completions", json=BODY | fields)


def counted(url, **headers):
    text = httpx.get(url + "/metrics", headers=headers).text
    counts = re.findall(r'^corepipe_injected_faults_total{.*?"(.*?)".*} (.*)$', text, re.MULTILINE)
    return {kind: float(count) for kind, count in counts if float(count)}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_a_status_is_answered_in_the_usual_shape(status):
    with faulty(f"{status}:100%") as url:
        answer = ask(url)
        assert answer.status_code == status
        assert answer.headers["x-corepipe-injected"] == str(status)
        assert ("retry-after" in answer.headers) == (status in (429, 503))
        assert "injected" in answer.json()["error"]["message"]
        assert counted(url) == {str(status): 1}


def test_only_generation_meets_faults():
    with faulty("500:100%") as url:
        paths = ("/health", "/health/live", "/ping", "/v1/models", "/metrics", "/metrics/neuron", "/version")
        assert {httpx.get(url + path).status_code for path in paths} == {200}
        assert httpx.post(url + "/tokenize", json={"prompt": "Hi"}).status_code == 200
        assert httpx.get(url + "/v1/completions").status_code == 405
        assert counted(url) == {}
        paths = ("/v1/completions", "/v1/chat/completions", "/invocations")
        assert {httpx.post(url + path, json=CHAT).status_code for path in paths} == {500}
        assert counted(url) == {"500": 3}


def test_strangers_are_refused_first():
    with faulty("500:100%", api_keys=("secret",), inject_with_keys=True) as url:
        assert ask(url).status_code == 401
        assert counted(url, authorization="Bearer secret") == {}


@pytest.mark.parametrize("fault", ["slow", "stall"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_late_is_whole(stream, fault):
    with faulty(f"{fault}:100%@200ms") as url:
        began = time.monotonic()
        answer = ask(url, stream=stream)
        assert time.monotonic() - began > 0.19  # uvloop's timers may end a millisecond early
        assert (answer.status_code, answer.headers["x-corepipe-injected"]) == (200, fault)
        assert ("data: [DONE]" in answer.text) is stream
        said = re.findall(r'"text": ?"(.*?)"', answer.text)
        assert "".join(said).startswith("Hello world. Hello")


def test_a_stalled_stream_has_begun():
    """The first event arrives although the next will not come for a long time."""
    with (
        faulty("stall:100%@600s") as url,
        httpx.stream("POST", url + "/v1/completions", json=BODY | {"stream": True}) as answer,
    ):
        assert next(answer.iter_lines()).startswith("data: ")


@pytest.mark.parametrize("tokens", [1, 30])
@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_breaks_off(stream, tokens, capfd):
    with faulty("cut-stream:100%") as url:
        body = BODY | {"stream": stream, "max_tokens": tokens}
        lines = []
        with httpx.stream("POST", url + "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            assert answer.headers["x-corepipe-injected"] == "cut-stream"
            with pytest.raises(httpx.RemoteProtocolError):
                lines.extend(answer.iter_lines())
        assert "data: [DONE]" not in lines
        if stream and tokens > 1:
            assert len([line for line in lines if line.startswith("data: ")]) >= 2
    assert "ASGI" not in capfd.readouterr().err


def test_a_dropped_connection_has_no_answer(capfd):
    with faulty("drop-connection:100%") as url:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            ask(url)
        assert counted(url) == {"drop-connection": 1}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("tokens", [1, 30])
def test_a_garbled_answer_does_not_parse(tokens):
    with faulty("garbled:100%") as url:
        answer = ask(url, max_tokens=tokens)
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) == len(answer.content)
        with pytest.raises(json.JSONDecodeError):
            answer.json()
        lines = ask(url, max_tokens=tokens, stream=True).text.removesuffix("\n\n").split("\n\n")
        assert [line for line in lines if line != "data: [DONE]" and not parses(line.removeprefix("data: "))]


@pytest.mark.parametrize("pieces", range(1, 7))
def test_one_piece_of_an_answer_is_garbled(pieces):
    """It is the third one, or the last of fewer: the rest of a long answer is whole again."""
    sent = []

    async def send(message):
        sent.append(message["body"])

    async def answer():
        spoiled = SpoiledSend({}, send, RequestFault("garbled", 1.0))
        for at in range(pieces):
            more = at < pieces - 1
            await spoiled({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": more})

    asyncio.run(answer())
    assert [at for at, body in enumerate(sent) if body != b"data: {}\n\n"] == [min(3, pieces) - 1]


def parses(text):
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def test_the_openai_client_retries_through_429s():
    """Half of the requests are refused; with 8 retries each is answered in the end."""
    with faulty("429:50%") as url:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=8)
        refused = 0
        for _ in range(3):
            raw = client.chat.completions.with_raw_response.create(**CHAT)
            assert raw.parse().choices[0].message.content
            refused += raw.retries_taken
        assert counted(url).get("429", 0) == refused > 0


def test_the_openai_client_sees_a_cut_stream_which_is_aborted():
    engine = FakeEngine(lambda submit: [*saying("on and on ", pause=0.001)(submit)[:-1], FOREVER])
    with running(engine, inject="cut-stream:100%") as url, openai_client(url) as client:
        pieces = []
        with pytest.raises(openai.APIConnectionError):
            pieces.extend(client.chat.completions.create(**CHAT, stream=True))
        assert pieces
        assert until(lambda: engine.aborted)
