"""Responses that a server keeps: retrieved, continued, listed, deleted and cancelled, key by key."""

from __future__ import annotations

import json
import threading

import httpx
import msgspec
import pytest

from corepipe.engine.messages import Output
from tests.servers import until
from tests.serving.api.responses.support import create, events_of, streamed, whole
from tests.serving.api.test_tools import MARKED, ROOMY, THINKER, says
from tests.serving.http_support import FakeEngine, begun, running

OF_ONE, OF_OTHER = ({"authorization": f"Bearer {key * 32}"} for key in "ab")
MISSING = "resp_" + "0" * 24


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(says("Hello é world"), ROOMY)


@pytest.fixture(scope="module")
def url(engine):
    with running(engine, text=MARKED.with_chat_template(THINKER), ready=ROOMY) as where:
        yield where


def one(url: str, name: str, path: str = "", **more) -> httpx.Response:
    return httpx.get(f"{url}/v1/responses/{name}{path}", **more)


def prompt_of(engine: FakeEngine) -> str:
    return MARKED.decode(engine.submitted[-1].prompt, skip_special_tokens=False)


def hanging(gate: threading.Event):
    """Answers with one token, and after the event with another and the end."""
    first, second = MARKED.encode("Hello world", add_special_tokens=False)[:2]
    return lambda submit: [
        *(Output(submit.id, [first]), gate, Output(submit.id, [second], finish_reason="stop")),
    ]


def test_a_response_comes_back_as_it_was(url, engine):
    plain = whole(url, input="Hi", metadata={"a": "b"})
    assert plain["store"]
    assert one(url, plain["id"]).json() == plain
    refused = one(url, plain["id"], params={"stream": "true"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


def test_a_stream_comes_back_byte_for_byte_and_from_any_event_on(url, engine):
    answer = create(url, input="Hi", stream=True)
    events = events_of(answer.text)
    name = events[0]["response"]["id"]
    assert one(url, name).json() == events[-1]["response"]
    again = one(url, name, params={"stream": "true"})
    assert again.content == answer.content
    assert again.headers["content-type"] == answer.headers["content-type"]
    for after in (0, 4, len(events) - 1, 10_000):
        rest = one(url, name, params={"stream": "true", "starting_after": after})
        known = answer.text.partition(f'"sequence_number":{after},')[2]
        assert rest.text == known.partition("\n\n")[2]
    for params in ({"stream": "true", "starting_after": "x"}, {"odd": 1}):
        assert one(url, name, params=params).status_code == 400


def test_tokens_that_came_together_have_events_of_their_own(url, engine):
    engine.script = says("Hello é world", pause=0.0)
    merged = streamed(url, input="Hi")
    engine.script = says("Hello é world", pause=0.001)
    single = streamed(url, input="Hi")
    assert [(one["type"], one.get("delta")) for one in single] == [
        (one["type"], one.get("delta")) for one in merged
    ]


def test_what_is_not_kept_says_so(url, engine):
    plain = whole(url, input="Hi", store=False)
    assert not plain["store"]
    assert one(url, plain["id"]).status_code == 404
    last = streamed(url, input="Hi", store=False)[-1]
    assert one(url, last["response"]["id"]).status_code == 404


def test_the_next_response_continues_the_previous_one(url, engine):
    engine.script = says("<think>\nHm\n</think>\n\nBlue")
    first = whole(url, input="My colour?", instructions="Be brief.")
    second = whole(url, input=[{"role": "user", "content": "Again"}], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    said = prompt_of(engine)
    assert said.index("My colour?") < said.index("<think>Hm</think>Blue") < said.index("Again")
    assert "Be brief." not in said  # instructions are not carried over
    listed = one(url, second["id"], "/input_items", params={"order": "asc"}).json()
    assert [item["type"] for item in listed["data"]] == ["message", "reasoning", "message", "message"]
    assert listed["data"][2]["id"] == first["output"][1]["id"]
    referred = {"type": "item_reference", "id": first["output"][1]["id"]}
    whole(url, input=[referred, {"role": "user", "content": "?"}])
    assert "Blue" in prompt_of(engine)


def test_input_is_listed_in_pages(url, engine):
    items = [{"role": "user", "content": f"n{number}"} for number in range(5)]
    name = whole(url, input=items)["id"]
    seen, after = [], None
    while True:
        params = {"limit": 2, "order": "asc"} | ({"after": after} if after else {})
        page = one(url, name, "/input_items", params=params).json()
        seen += [item["content"][0]["text"] for item in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == [f"n{number}" for number in range(5)]
    newest = one(url, name, "/input_items").json()["data"]
    assert [item["content"][0]["text"] for item in newest] == seen[::-1]
    assert one(url, name, "/input_items", params={"after": "msg_x"}).status_code == 404
    assert one(url, name, "/input_items", params={"limit": 0}).status_code == 400


def test_a_deleted_response_is_gone(url, engine):
    name = whole(url, input="Hi")["id"]
    gone = httpx.delete(f"{url}/v1/responses/{name}")
    assert gone.json() == {"id": name, "object": "response", "deleted": True}
    for answer in (
        one(url, name),
        one(url, name, "/input_items"),
        httpx.delete(f"{url}/v1/responses/{name}"),
    ):
        assert answer.status_code == 404
    refused = create(url, input="x", previous_response_id=name)
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "previous_response_id")


@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_goes_on_by_itself(url, engine, stream):
    gate = threading.Event()
    engine.script = hanging(gate)
    if stream:
        asked = {"model": "tiny", "input": "Hi", "background": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/responses", json=asked) as answer:
            name = _first(answer)
    else:
        queued = whole(url, input="Hi", background=True)
        assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
        name = queued["id"]
    assert until(lambda: one(url, name).json()["status"] == "in_progress")
    assert create(url, input="x", previous_response_id=name).status_code == 400
    gate.set()
    assert until(lambda: one(url, name).json()["status"] == "completed")
    events = events_of(one(url, name, params={"stream": "true"}).text)
    assert events[-1]["response"] == one(url, name).json()
    assert httpx.post(f"{url}/v1/responses/{name}/cancel").json()["status"] == "completed"


def _first(answer: httpx.Response) -> str:
    """The id of a streamed response, of whose events the client reads no more than the first."""
    for line in answer.iter_lines():
        if line.startswith("data: "):
            return str(json.loads(line.removeprefix("data: "))["response"]["id"])
    raise AssertionError


def test_a_background_response_is_followed_while_it_is_computed(url, engine):
    gate = threading.Event()
    engine.script = hanging(gate)
    name = whole(url, input="Hi", background=True)["id"]
    until(lambda: one(url, name).json()["status"] == "in_progress")
    params = {"stream": "true", "starting_after": 2}
    with httpx.stream("GET", f"{url}/v1/responses/{name}", params=params) as follower:
        lines = follower.iter_lines()
        assert next(lines) == "event: response.content_part.added"
        gate.set()
        text = "event: response.content_part.added\n" + "".join(f"{line}\n" for line in lines)
    assert one(url, name, params=params).text == text


def test_a_background_response_is_cancelled(url, engine):
    engine.script = begun("Hello")
    name = whole(url, input="Hi", background=True)["id"]
    until(lambda: one(url, name).json()["status"] == "in_progress")
    assert httpx.post(f"{url}/v1/responses/{name}/cancel").json()["status"] == "cancelled"
    assert engine.aborted
    assert one(url, name).json()["status"] == "cancelled"


def test_only_background_responses_are_cancelled(url, engine):
    name = whole(url, input="Hi")["id"]
    assert httpx.post(f"{url}/v1/responses/{name}/cancel").status_code == 400
    assert httpx.post(f"{url}/v1/responses/{MISSING}/cancel").status_code == 404
    assert create(url, input="x", background=True, store=False).json()["error"]["param"] == "background"


def test_a_client_that_leaves_cancels_its_stream(url, engine):
    engine.script = begun("Hello")
    asked = {"model": "tiny", "input": "Hi", "stream": True}
    with httpx.stream("POST", f"{url}/v1/responses", json=asked) as answer:
        name = _first(answer)
    assert until(lambda: one(url, name).json()["status"] == "cancelled")


def test_a_request_that_fails_before_it_begins_is_not_kept(url, engine):
    engine.script = lambda submit: [
        Output(submit.id, finish_reason="error", error_kind="overloaded", error="full", retry_seconds=1)
    ]
    refused = create(url, input="Hi", stream=True)
    assert refused.status_code == 429
    failed = whole(url, input="Hi", background=True)
    assert until(lambda: one(url, failed["id"]).json()["status"] == "failed")
    assert one(url, failed["id"]).json()["error"] == {"code": "rate_limit_exceeded", "message": "full"}


def test_each_key_has_its_own_responses():
    engine = FakeEngine(says("Hello"), ROOMY)
    keys = {"api_keys": ("a" * 32, "b" * 32)}
    with running(engine, text=MARKED.with_chat_template(THINKER), ready=ROOMY, **keys) as url:
        made = httpx.post(f"{url}/v1/responses", json={"input": "Hi"}, headers=OF_ONE).json()
        name, item = made["id"], made["output"][0]["id"]
        assert one(url, name, headers=OF_ONE).status_code == 200
        for answer in (
            one(url, name, headers=OF_OTHER),
            one(url, name, "/input_items", headers=OF_OTHER),
            httpx.delete(f"{url}/v1/responses/{name}", headers=OF_OTHER),
            httpx.post(f"{url}/v1/responses/{name}/cancel", headers=OF_OTHER),
            *(
                httpx.post(f"{url}/v1/responses", json=body, headers=OF_OTHER)
                for body in (
                    {"input": "x", "previous_response_id": name},
                    {"input": [{"type": "item_reference", "id": item}]},
                )
            ),
        ):
            assert answer.status_code == 404, answer.text
            unknown = answer.json()["error"]["message"].replace(name, MISSING)
            assert "found with id" in unknown
        assert one(url, name, headers=OF_ONE).json() == made


def test_a_full_store_keeps_no_more_and_says_so():
    engine = FakeEngine(says("Hello"), ROOMY)
    text = MARKED.with_chat_template(THINKER)
    huge = msgspec.structs.replace(ROOMY, max_model_len=2**22)
    with running(engine, text=text, ready=huge, store_bytes=1024 * 1024) as url:
        tools = [{"type": "function", "name": f"f{n}", "description": "d" * 100_000} for n in range(12)]
        for stream in (False, True):
            answer = create(url, input="Hi", tools=tools, stream=stream, tool_choice="none")
            assert answer.status_code == 200, answer.text
            assert '"store":false' in answer.text
            assert '"store":true' not in answer.text
        refused = create(url, input="Hi", tools=tools, background=True, tool_choice="none")
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "store_full")
        assert whole(url, input="Hi")["store"]
