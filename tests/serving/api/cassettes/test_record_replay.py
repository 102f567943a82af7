"""The real app over a real socket: it replays what it recorded, byte for byte, without an engine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from corepipe.engine.messages import Output, failed_output
from corepipe.serving.api.cassettes.file_format import read
from corepipe.serving.api.cassettes.library import MAX_FILE
from tests.servers import metric_of, until
from tests.serving.api.golden import (
    CHAT,
    CHATS,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    SCRIPTS,
    STREAM,
    TEXT,
    cases,
)
from tests.serving.http_support import DEVICE, FakeEngine, begun, replaying, running, saying
from tests.wires import connected, post

KEY = "sk-canary-0a1b2c3d4e"
PASSING = {"broken", "refused"}
HTTP = httpx.Client()
"""One instance for all tests: making one takes as long as a test."""


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    with HTTP:
        yield


def ask(url: str, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Returns the status, the headers that do not depend on the moment, and the body of an answer."""
    answer = HTTP.post(url + path, json=body, headers=headers)
    passing = {"date", "x-request-id", "request-id", "connection"}
    return answer.status_code, {n: v for n, v in answer.headers.items() if n not in passing}, answer.content


def cassettes(folder: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(file.read_text()) for file in sorted(folder.glob("*.yaml"))]


def counted(url: str, outcome: str) -> float:
    return metric_of(HTTP.get(f"{url}/metrics").text, "corepipe_cassettes_total", f'outcome="{outcome}"')


def test_everything_that_answers_may_be_comes_back_byte_for_byte(tmp_path: Path) -> None:
    engine, heard = FakeEngine(), []
    with running(engine, record=tmp_path) as url:
        for script, path, body in cases():
            engine.script = SCRIPTS[script]
            heard.append(ask(url, path, body))
        models = HTTP.get(f"{url}/v1/models").content
        tokens = ask(url, "/tokenize", {"prompt": "Hi"})
        wrong = [ask(url, COMPLETIONS, TEXT | more) for more in ({"temperature": 9}, {"model": "none"})]
    with replaying(tmp_path) as url:
        for (script, path, body), before in zip(cases(), heard, strict=True):
            if script not in PASSING:
                assert ask(url, path, body) == before
        assert HTTP.get(f"{url}/v1/models").content == models
        assert ask(url, "/tokenize", {"prompt": "Hi"}) == tokens
        again = [ask(url, COMPLETIONS, TEXT | more) for more in ({"temperature": 9}, {"model": "none"})]
        assert again == wrong
        assert [status for status, _, _ in wrong] == [400, 404]
        assert counted(url, "refused") == 0


NAMED: dict[str, dict[str, Any]] = {
    MESSAGES: CHAT,
    RESPONSES: {"model": "tiny", "input": "Hi", "max_output_tokens": 6, "store": False},
}
"""Requests whose streams have named events."""


@pytest.mark.parametrize("path", NAMED)
def test_named_events_are_recorded_as_objects_and_may_be_edited(tmp_path: Path, path: str) -> None:
    body = NAMED[path]
    with running(FakeEngine(saying("Hello world. ", pause=0.001)), record=tmp_path) as url:
        whole, streamed = ask(url, path, body), ask(url, path, body | STREAM)
    recorded = [one for one in cassettes(tmp_path) if one["request"]["body"].get("stream")]
    events = [event for piece in recorded[0]["answer"]["events"] for event in piece]
    names = re.findall(rb"^event: (.*)$", streamed[2], re.MULTILINE)
    assert [event["type"].encode() for event in events] == names
    assert len(events) > 5
    assert b'"Hello' in whole[2]
    for file in tmp_path.glob("*.yaml"):
        file.write_text(file.read_text().replace('"Hello', '"Howdy'))
    with replaying(tmp_path) as url:
        for form, heard in (({}, whole), (STREAM, streamed)):
            assert ask(url, path, body | form)[2] == heard[2].replace(b'"Hello', b'"Howdy')


def test_a_stream_of_messages_that_failed_for_now_is_not_recorded(tmp_path: Path) -> None:
    def failing(submit: Any) -> list[Any]:
        (first,) = begun("Hello")(submit)[:1]
        return [first, 0.001, Output(submit.id, finish_reason="error", error_kind="expired")]

    with running(FakeEngine(failing), record=tmp_path) as url:
        for path in (CHATS, MESSAGES):
            assert b"error" in ask(url, path, CHAT | STREAM)[2]
    assert cassettes(tmp_path) == []


def test_what_a_recording_holds(tmp_path: Path) -> None:
    with running(FakeEngine(saying("Hello world. ", pause=0.001)), record=tmp_path, api_keys=(KEY,)) as url:
        status, _, _ = ask(url, CHATS, CHAT | STREAM, Authorization=f"Bearer {KEY}", Cookie="a=" + KEY)
        assert status == 200
    (one,) = cassettes(tmp_path)
    assert one["request"] == {"method": "POST", "path": CHATS, "body": CHAT | STREAM}
    assert one["answer"]["headers"]["content-type"] == "text/event-stream; charset=utf-8"
    assert len(one["answer"]["times_ms"]) == len(one["answer"]["events"]) >= 6
    assert one["answer"]["times_ms"] == sorted(one["answer"]["times_ms"])
    assert one["device"]["emulated"] is True
    assert one["device"]["time_to_first_token_ms"] == DEVICE.time_to_first_token_ms
    (file,) = tmp_path.iterdir()
    assert KEY not in file.read_text()
    assert re.fullmatch(r"chat-completions-[0-9a-f]{12}-001\.yaml", file.name)


def test_a_secret_of_a_rule_reaches_no_file(tmp_path: Path) -> None:
    """The client receives the secret, piece by piece; no file of the directory has it."""
    rules, folder = tmp_path / "rules.toml", tmp_path / "tapes"
    rules.write_text(f"[[rule]]\nregex='{KEY[:3]}[a-z0-9-]+'\n[[rule]]\npath='$.user'\n")
    asked = TEXT | {"prompt": f"Say {KEY}", "max_tokens": 64, "user": "alice", "logprobs": 1} | STREAM
    engine = FakeEngine(saying(f"It is {KEY} of alice", pause=0.001, ends="stop"))
    with running(engine, record=folder, record_redact=rules) as url:
        _, _, heard = ask(url, COMPLETIONS, asked)
    assert text_of(heard) == f"It is {KEY} of alice"
    (file,) = folder.iterdir()
    written = file.read_text()
    for secret in ("canary", "0a1b", "alice"):
        assert secret not in written
    with replaying(folder, record_redact=rules) as url:
        _, _, again = ask(url, COMPLETIONS, asked | {"user": "bob"})
    assert text_of(again) == "It is REDACTED of REDACTED"


def text_of(stream: bytes) -> str:
    return "".join(json.loads(line[6:])["choices"][0]["text"] for line in stream.decode().split("\n\n")[:-2])


def test_the_header_that_asks_for_device_times_tells_requests_apart(tmp_path: Path) -> None:
    with running(FakeEngine(), record=tmp_path) as url:
        plain, device = ask(url, COMPLETIONS, TEXT), ask(url, COMPLETIONS, TEXT, **{"x-corepipe-device": "1"})
    assert plain != device
    with replaying(tmp_path) as url:
        assert ask(url, COMPLETIONS, TEXT, **{"x-corepipe-device": "1"}) == device
        assert ask(url, COMPLETIONS, TEXT) == plain


def test_what_is_not_recorded_is_refused_with_what_is_nearest(tmp_path: Path) -> None:
    with running(FakeEngine(), record=tmp_path) as url:
        ask(url, CHATS, CHAT)
    (file,) = tmp_path.iterdir()
    with replaying(tmp_path) as url:
        status, _, body = ask(url, CHATS, CHAT | {"messages": [{"role": "user", "content": "Ho"}]})
        error = json.loads(body)["error"]
        assert (status, error["type"], error["code"]) == (404, "invalid_request_error", "not_recorded")
        assert file.name in error["message"]
        assert re.search(r'^-.*"content": "Hi".*\n\+.*"content": "Ho"', error["message"], re.MULTILINE)
        status, _, body = ask(url, COMPLETIONS, TEXT)
        assert (status, "nor any other" in json.loads(body)["error"]["message"]) == (404, True)
        assert counted(url, "refused") == 2
        huge = CHAT | {"messages": [{"role": "user", "content": "x\n" * 100_000}]}
        assert len(ask(url, CHATS, huge)[2]) < 8000


def test_bodies_that_are_no_json_are_refused_as_ever(tmp_path: Path) -> None:
    def refusal(url: str) -> tuple[int, bytes]:
        answer = httpx.post(url + CHATS, content=b"{", headers={"content-type": "application/json"})
        return answer.status_code, answer.content

    with running(FakeEngine(), record=tmp_path) as url:
        live = refusal(url)
        ask(url, CHATS, CHAT)
    assert len(cassettes(tmp_path)) == 1
    with replaying(tmp_path) as url:
        assert refusal(url) == live
        assert live[0] == 400


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with running(FakeEngine(saying("One. ")), record=tmp_path) as url:
        ask(url, CHATS, CHAT)
    return tmp_path


def test_what_is_not_recorded_is_computed(recorded: Path) -> None:
    with running(FakeEngine(saying("Two. ")), replay=recorded, replay_else="compute") as url:
        assert b"One. " in ask(url, CHATS, CHAT)[2]
        assert b"Two. " in ask(url, COMPLETIONS, TEXT)[2]
        assert (counted(url, "replayed"), counted(url, "computed"), counted(url, "recorded")) == (1, 1, 0)
    assert len(cassettes(recorded)) == 1


def test_what_is_not_recorded_is_computed_and_recorded(recorded: Path) -> None:
    (before,) = recorded.iterdir()
    text = before.read_bytes()
    engine = FakeEngine(saying("Two. "))
    with running(engine, replay=recorded, replay_else="record") as url:
        first, second = (ask(url, COMPLETIONS, TEXT) for _ in range(2))
        assert b"One. " in ask(url, CHATS, CHAT)[2]
        assert len(engine.submitted) == 2, "what this server recorded is for the next one"
    assert first != second, "they have ids of their own"
    assert len(list(recorded.iterdir())) == 3
    assert before.read_bytes() == text
    with replaying(recorded) as url:
        assert [ask(url, COMPLETIONS, TEXT) for _ in range(2)] == [first, second]


def test_a_directory_to_be_filled_need_not_exist(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with running(FakeEngine(), replay=folder, replay_else="record") as url:
        ask(url, CHATS, CHAT)
    assert len(cassettes(folder)) == 1


def test_at_the_recorded_pace_nothing_comes_before_its_time(recorded: Path) -> None:
    (file,) = recorded.iterdir()
    text = file.read_text()
    stream = CHAT | STREAM
    with running(FakeEngine(saying("Hi. ", pause=0.001)), record=recorded / "s") as url:
        _, _, live = ask(url, CHATS, stream)
    (streamed,) = (recorded / "s").iterdir()
    slow = [float(at * 60) for at in range(1, 1 + len(cassettes(recorded / "s")[0]["answer"]["times_ms"]))]
    streamed.write_text(re.sub(r'"times_ms": \[.*\]', f'"times_ms": {slow}', streamed.read_text()))
    file.write_text(re.sub(r'"times_ms": \[.*\]', '"times_ms": [200.0]', text))
    with replaying(recorded, replay_pace="recorded") as url:
        began = time.perf_counter()
        assert ask(url, CHATS, CHAT)[0] == 200
        assert time.perf_counter() - began >= 0.2
    pieces = read(streamed.read_bytes(), MAX_FILE).exchange().answer.pieces
    with replaying(recorded / "s", replay_pace="recorded") as url:
        began, heard = time.perf_counter(), b""
        with httpx.stream("POST", url + CHATS, json=stream) as answer:
            for part in answer.iter_raw():
                heard += part
                now_ms = (time.perf_counter() - began) * 1e3
                assert len(heard) <= sum(len(piece.data) for piece in pieces if piece.at_ms <= now_ms)
    assert heard == live


def test_a_client_that_leaves_a_slow_replay_frees_the_server(recorded: Path) -> None:
    (file,) = recorded.iterdir()
    file.write_text(re.sub(r'"times_ms": \[.*\]', '"times_ms": [80000000.0]', file.read_text()))
    with replaying(recorded, replay_pace="recorded") as url, connected(url) as client:
        client.sendall(post(CHATS, json.dumps(CHAT).encode()))
        assert until(lambda: counted(url, "replayed") == 1)
    # Leaving the block ends the server, which waits for what is under way.


def test_what_nobody_got_whole_is_not_recorded(tmp_path: Path) -> None:
    engine = FakeEngine(begun("Hello"))
    with running(engine, record=tmp_path) as url:
        with httpx.stream("POST", url + COMPLETIONS, json=TEXT | STREAM) as answer:
            next(answer.iter_raw())
        assert until(lambda: engine.aborted)
        engine.script = saying("Hi. ")
        ask(url, COMPLETIONS, TEXT)
    (one,) = cassettes(tmp_path)
    assert "stream" not in one["request"]["body"]


def _ends_badly(submit: Any) -> list[Output | float]:
    return [Output(submit.id, [5]), 0.01, failed_output(submit.id, "The engine has stopped.")]


def test_what_tells_of_the_moment_is_not_recorded(tmp_path: Path) -> None:
    engine = FakeEngine(_ends_badly)
    with running(engine, record=tmp_path) as url:
        assert b"error" in ask(url, COMPLETIONS, TEXT | STREAM)[2]
        assert ask(url, COMPLETIONS, TEXT)[0] == 503
        engine.script = SCRIPTS["refused"]
        assert ask(url, COMPLETIONS, TEXT)[0] == 429
    assert list(tmp_path.iterdir()) == []


def test_injected_faults_are_not_recorded_and_meet_replays(recorded: Path, tmp_path: Path) -> None:
    with running(FakeEngine(), record=tmp_path / "more", inject="429:100%") as url:
        assert ask(url, CHATS, CHAT)[0] == 429
    assert list((tmp_path / "more").iterdir()) == []
    with replaying(recorded, inject="500:100%") as url:
        assert ask(url, CHATS, CHAT)[0] == 500


def test_a_replay_is_a_server_like_any_other(recorded: Path) -> None:
    with replaying(recorded, served_model_names=("tiny",)) as url:
        probes = ("/health", "/health/ready", "/health/live", "/ping", "/version")
        for path in (*probes, "/metrics", "/metrics/neuron"):
            assert HTTP.get(url + path).status_code == 200, path
        (card,) = HTTP.get(f"{url}/v1/models").json()["data"]
        assert (card["id"], card["max_model_len"]) == ("tiny", None)
        assert HTTP.get(f"{url}/v1/models/tiny").json()["id"] == "tiny"
        assert HTTP.get(f"{url}/v1/models/none").status_code == 404
        assert HTTP.get(f"{url}/v1/placement").status_code == 404
        assert HTTP.get(f"{url}/openapi.json").status_code == 200
        assert ask(url, "/tokenize", {"prompt": "a"})[0] == 404
        assert HTTP.put(url + CHATS).status_code == 405
    with replaying(recorded, api_keys=(KEY,)) as url:
        assert ask(url, CHATS, CHAT)[0] == 401
        assert ask(url, CHATS, CHAT, Authorization=f"Bearer {KEY}")[0] == 200


def test_a_directory_that_breaks_costs_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "tapes"
    with running(FakeEngine(), record=folder) as url:
        folder.rmdir()
        assert ask(url, CHATS, CHAT)[0] == 200
        assert until(lambda: counted(url, "lost") == 1)
        folder.mkdir()
        assert ask(url, CHATS, CHAT)[0] == 200
        assert until(lambda: counted(url, "recorded") == 1)
    assert len(cassettes(folder)) == 1


def test_many_at_once_are_all_recorded(tmp_path: Path) -> None:
    def all_of(url: str) -> list[object]:
        bodies = [CHAT | {"seed": number} | (STREAM if number % 2 else {}) for number in range(32)]
        with ThreadPoolExecutor(32) as pool:
            return [*pool.map(lambda body: ask(url, CHATS, body), bodies)]

    with running(FakeEngine(saying("Hi there. ", pause=0.001)), record=tmp_path) as url:
        live = all_of(url)
    assert len(live) == len(list(tmp_path.iterdir())) == 32
    with replaying(tmp_path) as url:
        assert all_of(url) == live


def test_two_servers_record_into_one_directory(tmp_path: Path) -> None:
    hi = saying("Hi there. ")
    with running(FakeEngine(hi), record=tmp_path) as one, running(FakeEngine(hi), record=tmp_path) as other:
        said = [ask(url, CHATS, CHAT)[2] for _ in range(5) for url in (one, other)]
    assert len(cassettes(tmp_path)) == len(set(said)) == 10
    with replaying(tmp_path) as url:
        assert sorted(ask(url, CHATS, CHAT)[2] for _ in range(10)) == sorted(said)
