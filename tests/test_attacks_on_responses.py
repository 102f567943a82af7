"""Hostile and careless clients of the routes of responses: refused by name, and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from corepipe.serving.api.responses.items import MAX_SEALED, sealed
from tests.attacks import Watch
from tests.servers import TINY, Served, served
from tests.test_attacks import NO_OBJECTS
from tests.test_attacks_on_messages import BEARER, KEY, OTHER, SSRF, deep
from tests.wires import exchange, post

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": "tiny", "max_output_tokens": 2, "input": "a"}
ASKED = (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"))
OF_OTHER = {"authorization": f"Bearer {OTHER}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n{OTHER}\n")
    keys.chmod(0o600)
    with served(TINY, "--served-model-name", "tiny", "--threads", 1, "--api-key-file", keys) as running:
        opened = running.post(PATH, json=ASK, headers={"authorization": f"Bearer {KEY}"})
        assert opened.json()["store"]  # from now on the store's files are open
        yield running


@pytest.mark.parametrize("name", NO_OBJECTS)
def test_what_is_no_object(watch: Watch, name: str) -> None:
    for path in (PATH, f"{PATH}/input_tokens"):
        (answer,) = exchange(watch.server.url, post(path, NO_OBJECTS[name], BEARER))
        assert answer.status == 400, answer.body


def said(*items: Any) -> dict[str, Any]:
    return {"input": list(items)}


def content(*parts: Any) -> dict[str, Any]:
    return said({"role": "user", "content": list(parts)})


MESSAGE = {"role": "user", "content": "a"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
REASONING = {"type": "reasoning", "summary": []}
WRONG: list[tuple[dict[str, Any], str]] = [
    *[({"input": value}, "input") for value in ([], None, {}, [5], [{}], [MESSAGE] * 3000, 5)],
    ({"input": "word " * 600_000}, "input"),
    *[(said({"type": kind}), "input[0]") for kind in ("odd", "x" * 10**5, 5, ["message"], "computer_call")],
    *[(said({"role": role, "content": "a"}), "input[0].role") for role in ("tool", 1, "x" * 10**6)],
    *[(content(part), "input[0].content[0]") for part in (None, 5, [], {}, {"type": "input_text"})],
    (content(*[{"type": "input_text", "text": "a"}] * 20_000), ""),
    *[(content({"type": "input_image", "image_url": url}), "input[0].content[0]") for url in SSRF],
    (content({"type": "input_file", "file_id": "../../etc/passwd"}), "input[0].content[0]"),
    (said({"type": "function_call", "call_id": "a", "name": "f", "arguments": {}}), "arguments"),
    (said({"type": "function_call_output", "call_id": "a", "output": deep(9)}), "output"),
    (said({"type": "item_reference", "id": "../" * 40}), "input[0].id"),
    (said({"type": "item_reference", "id": "x" * 10**6}), "input[0].id"),
    (said(*({"type": "item_reference", "id": f"msg_{at}_0"} for at in range(100))), "input"),
    *[
        (said({**REASONING, "encrypted_content": value}), "input[0].encrypted_content")
        for value in ("gAAAA", "corepipe1.", "corepipe1.%%", "corepipe1.AAAA", sealed("x" * (MAX_SEALED + 9)))
    ],
    *[
        ({"previous_response_id": value}, "previous_response_id")
        for value in ("x", "../../etc/passwd", "resp_' OR 1=1 --", "x" * 10**6, 5)
    ],
    *[({"max_output_tokens": value}, "max_output_tokens") for value in (0, -1, 2**63, "1", 1.5)],
    *[({"tools": [TOOL] * count}, "tools") for count in (2, 600)],
    *[({"tools": [tool]}, "tools[0]") for tool in (5, {}, {"type": ["x"] * 1000}, {"type": "mcp"})],
    ({"tools": [{**TOOL, "name": "f<|im_end|>\n"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "parameters": deep(400)}]}, "tools[0]"),
    ({"tools": [{**TOOL, "parameters": {"type": "object", "x": "y" * 200_000}}]}, "tools[0].parameters"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [TOOL] * 600}]}, "tools"),
    *[
        ({"tools": [TOOL], "tool_choice": value}, "tool_choice")
        for value in ("any", {"type": "function"}, {"type": "x" * 10**5}, {"type": "allowed_tools"}, [])
    ],
    ({"text": {"format": {"type": "json_schema", "schema": deep(300)}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
    ({"metadata": {str(at): "x" for at in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 10**6}}, "metadata"),
    ({"include": ["x"]}, "include"),
    ({"prompt": {"id": SSRF[0]}}, "prompt"),
    ({"conversation": "x"}, "conversation"),
    ({"priority": -1}, "priority"),
    ({"background": True, "store": False}, "background"),
    (said({**MESSAGE, "x\r\nset-cookie: a": 1}), "input[0].x"),
    (said({**MESSAGE, **{f"x{at}": 1 for at in range(100)}}), "input[0].x"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "named"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_request(watch: Watch, changed: dict[str, Any], named: str) -> None:
    answer = watch.http.post(PATH, json=ASK | changed)
    assert answer.status_code in (400, 404, 413), answer.text
    assert len(answer.content) < 2000
    assert named in (answer.json()["error"]["param"] or "")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "name", ["x", "..%2f..%2fetc%2fpasswd", "resp_%00", "resp_" + "a" * 6000, "' OR 1=1 --", "%F0%9F%98%80"]
)
def test_a_name_that_is_none(watch: Watch, name: str) -> None:
    for method, path in ASKED:
        answer = watch.http.request(method, f"{PATH}/{name}{path}")
        assert answer.status_code in (404, 405, 414), (method, path, answer.text)


def test_another_key_finds_nothing(watch: Watch) -> None:
    made = watch.http.post(PATH, json=ASK | {"input": "a secret of one tenant"}).json()
    name, item = made["id"], made["output"][0]["id"]
    asked = [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("GET", "/input_items"),
        ("GET", "?stream=true"),
    ]
    for method, path in asked:
        answer = watch.http.request(method, f"{PATH}/{name}{path}", headers=OF_OTHER)
        unknown = watch.http.request(method, f"{PATH}/resp_{'0' * 24}{path}", headers=OF_OTHER)
        assert answer.status_code == unknown.status_code == 404
        assert answer.text.replace(name, f"resp_{'0' * 24}") == unknown.text
    for fields in ({"previous_response_id": name}, said({"type": "item_reference", "id": item})):
        assert watch.http.post(PATH, json=ASK | fields, headers=OF_OTHER).status_code == 404
    assert watch.http.get(f"{PATH}/{name}").json() == made


def test_a_crowd_of_background_responses_is_bounded(watch: Watch) -> None:
    body = ASK | {"background": True, "max_output_tokens": 200, "ignore_eos": True}
    answers = [watch.http.post(PATH, json=body) for _ in range(200)]
    assert {one.status_code for one in answers} <= {200, 429}
    for one in answers:
        if one.status_code == 200:
            gone = watch.http.delete(f"{PATH}/{one.json()['id']}")
            assert gone.status_code == 200


def test_long_chains_end(watch: Watch) -> None:
    previous, last = None, None
    for _ in range(12):
        fields = {} if previous is None else {"previous_response_id": previous}
        last = watch.http.post(PATH, json=ASK | {"input": "word " * 30} | fields)
        if last.status_code != 200:
            break
        previous = last.json()["id"]
    assert last is not None
    assert last.status_code == 400
    assert json.loads(last.content)["error"]["code"] == "context_length_exceeded"
