"""Constraints over HTTP: the grammar of each field, and what is refused before a token is generated."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from corepipe.structured import grammar_checker
from corepipe.structured.constraints import Constraint
from corepipe.structured.grammars import grammar_of
from tests.servers import metric_of
from tests.serving.http_support import FakeEngine, running, saying
from tests.structured.test_grammar_checker import sandboxes

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
LARK = 'start: "a" | "b"'
USER = {"role": "user", "content": "a"}
PATHS = {
    "/v1/completions": {"model": "tiny", "prompt": "a", "max_tokens": 4},
    "/v1/chat/completions": {"model": "tiny", "messages": [USER], "max_tokens": 4},
}


@pytest.fixture(params=PATHS)
def ask(request, url):
    def asked(**fields: Any) -> httpx.Response:
        return httpx.post(url + request.param, json=PATHS[request.param] | fields)

    return asked


def grammar(kind: Any, text: str, whitespace: str | None = None) -> str:
    return grammar_of(Constraint(kind, text, "", whitespace=whitespace))


TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
OF_TAG = grammar("structural_tag", json.dumps(TAG))
OF_JSON = {"type": "json_schema", "json_schema": SCHEMA}
NEWER = {"type": "tag", "begin": "<f>", "content": OF_JSON, "end": "</f>"}
OBJECT = grammar("json_object", '{"type":"object"}')
OF_SCHEMA = grammar("json_schema", json.dumps(SCHEMA))

TEXT, JSON = {"type": "text"}, {"type": "json_object"}
OF_TEXT = json.dumps(SCHEMA)
COMPACT, SPACED = (grammar("json_schema", OF_TEXT, space) for space in ("", "[ ]?"))
PLUS, A_OR_B, OF_LARK = grammar("regex", "a+"), grammar("choice", '["a","b"]'), grammar("grammar", LARK)
OF_NEWER = grammar("structural_tag", json.dumps({"format": NEWER}))


def form(value: object, **more: object) -> dict[str, Any]:
    return {"response_format": value, **more}


def outputs(**fields: object) -> dict[str, Any]:
    return {"structured_outputs": fields}


HONOURED: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    (form(None, structured_outputs=None, guided_json=None), ""),
    (form(TEXT), ""),
    (form(JSON), OBJECT),
    (form(JSON_SCHEMA), OF_SCHEMA),
    (form({"type": "json_object", "schema": SCHEMA}), OF_SCHEMA),
    (form({"type": "json_schema", "schema": SCHEMA}), OF_SCHEMA),
    (form({"type": "json_schema", "json_schema": {"schema": SCHEMA}}), OF_SCHEMA),
    (outputs(json=SCHEMA), OF_SCHEMA),
    (outputs(json=OF_TEXT, disable_additional_properties=True), OF_SCHEMA),
    (outputs(json=SCHEMA) | form(TEXT), OF_SCHEMA),
    (outputs(json_object=True), OBJECT),
    (outputs(regex="a+", choice=None, json_object=False), PLUS),
    (outputs(choice=["a", "b"]), A_OR_B),
    (outputs(grammar=LARK), OF_LARK),
    (outputs(json=SCHEMA, disable_any_whitespace=True), COMPACT),
    (form(TAG), OF_TAG),
    (outputs(structural_tag=json.dumps(TAG)), OF_TAG),
    (form({"type": "structural_tag", "format": NEWER}), OF_NEWER),
    ({"guided_json": SCHEMA}, OF_SCHEMA),
    ({"guided_json": OF_TEXT, "guided_decoding_backend": "xgrammar"}, OF_SCHEMA),
    ({"guided_json_object": True}, OBJECT),
    ({"guided_regex": "a+"}, PLUS),
    ({"guided_choice": ["a", "b"]}, A_OR_B),
    ({"guided_grammar": LARK}, OF_LARK),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": "[ ]?"}, SPACED),
]


@pytest.mark.parametrize(("fields", "wanted"), HONOURED, ids=lambda value: str(value)[:60])
def test_what_is_asked_for_reaches_the_engine(ask, engine, fields, wanted):
    answer = ask(**fields)
    assert answer.status_code == 200, answer.text
    assert [one.grammar for one in engine.submitted] == [wanted]


MISSING, WRONG, UNSUPPORTED = "missing_required_parameter", "invalid_value", "unsupported_value"
REGEX_TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "a"}}
NO_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x"}}
UNKNOWN = {"type": "json_schema", "json_schema": {"schema": {}, "foo": 1}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (form({}), "response_format.type", MISSING),
    (form({"type": "structural_tag"}), "response_format", WRONG),
    (form(TAG | {"type": "text"}), "response_format.structures", WRONG),
    (form(TAG | {"schema": {}}), "response_format.schema", WRONG),
    (form(TAG | {"format": {}}), "response_format", WRONG),
    (form(REGEX_TAG), "response_format", UNSUPPORTED),
    (form({"type": "json_schema"}), "response_format.json_schema", MISSING),
    (form(NO_SCHEMA), "response_format.json_schema.schema", MISSING),
    (form(UNKNOWN), "response_format.json_schema.foo", "unsupported_parameter"),
    (form(JSON_SCHEMA | JSON), "response_format.json_schema", WRONG),
    (form(JSON_SCHEMA | {"schema": {}}), "response_format.schema", WRONG),
    (form(TEXT | {"schema": {}}), "response_format.schema", WRONG),
    (form(JSON | {"schema": {"not": {}}}), "response_format", UNSUPPORTED),
    (form("json"), "response_format", "invalid_type"),
    (outputs(), "structured_outputs", WRONG),
    (outputs(structural_tag="{}"), "structured_outputs.structural_tag", WRONG),
    (outputs(regex="a", choice=["a"]), "structured_outputs.choice", WRONG),
    (outputs(choice=[1]), "structured_outputs.choice[0]", "invalid_type"),
    (outputs(regex="(?=a)"), "structured_outputs.regex", WRONG),
    (outputs(json=5), "structured_outputs.json", WRONG),
    (outputs(regex="a") | form(JSON_SCHEMA), "structured_outputs", WRONG),
    (form(JSON_SCHEMA, guided_regex="a"), "guided_regex", WRONG),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", WRONG),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", WRONG),
    ({"guided_json": {}, "guided_whitespace_pattern": "x"}, "guided_whitespace_pattern", WRONG),
    ({"guided_decoding_backend": "mine"}, "guided_decoding_backend", "unsupported_parameter"),
    (outputs(regex="x" * 300_000), "structured_outputs.regex", "request_too_complex"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "code"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_is_refused_before_a_token(ask, engine, fields, param, code, stream):
    answer = ask(**fields, stream=stream)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert engine.submitted == []


def test_every_choice_is_held_to_it(ask, engine):
    assert ask(response_format=JSON_SCHEMA, n=3).status_code == 200
    assert [one.grammar for one in engine.submitted] == [OF_SCHEMA] * 3


def test_the_end_of_a_grammar_ends_an_answer_that_ignores_eos(ask, engine):
    assert ask(response_format=JSON_SCHEMA, ignore_eos=True).status_code == 200
    assert ask(ignore_eos=True).status_code == 200
    assert [bool(one.stop_ids) for one in engine.submitted] == [True, False]


def test_prompts_are_each_held_to_it(url, engine):
    body = PATHS["/v1/completions"] | {"prompt": ["a", "b"], "response_format": JSON_SCHEMA}
    assert httpx.post(url + "/v1/completions", json=body).status_code == 200
    assert [one.grammar for one in engine.submitted] == [OF_SCHEMA] * 2


def test_clients_find_the_words_that_they_look_for(ask):
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "Person", "schema": schema}}
    assert ask(response_format=wanted).json()["error"]["message"] == (
        "Invalid schema for response_format 'Person': In context=('properties', 'tags'), "
        "'uniqueItems' is not permitted."
    )


class Person(BaseModel):
    name: str
    age: int | None = None


def test_the_sdk_parses_a_class_of_pydantics(engine, client):
    engine.script = saying('{"name": "Ada", "age": 36}<|im_end|>', ends="stop")
    asked = {"model": "tiny", "messages": [USER], "response_format": Person}
    whole = client.chat.completions.parse(**asked)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion()
    for answer in (whole, streamed):
        assert answer.choices[0].message.parsed == Person(name="Ada", age=36)
    assert all(one.grammar for one in engine.submitted)


def test_constraints_and_refusals_are_counted(url):
    def counts() -> dict[str, float]:
        text = httpx.get(url + "/metrics").text
        return {
            "schema": metric_of(text, "corepipe_constrained_requests_total", 'kind="json_schema"'),
            "regex": metric_of(text, "corepipe_constrained_requests_total", 'kind="regex"'),
            "unsupported": metric_of(text, "corepipe_constraint_refusals_total", 'reason="unsupported"'),
            "too_complex": metric_of(text, "corepipe_constraint_refusals_total", 'reason="too_complex"'),
            "checks": metric_of(text, "corepipe_grammar_check_seconds_count"),
        }

    def ask(**fields: Any) -> int:
        return httpx.post(url + "/v1/completions", json=PATHS["/v1/completions"] | fields).status_code

    before = counts()
    assert ask(guided_regex="only here") == 200
    assert ask(guided_regex="only here", n=2) == 200
    assert ask(guided_json={"only": "here", "type": "null"}) == 200
    assert ask(guided_json={"only": "here", "not": {}}) == 400
    assert ask(guided_regex="y" * 300_000) == 400
    after = counts()
    told = {name: after[name] - before[name] for name in after}
    assert told == {"schema": 1, "regex": 2, "unsupported": 1, "too_complex": 1, "checks": 3}


def test_checking_that_takes_too_long_is_told_to_come_again(url, monkeypatch):
    monkeypatch.setattr(grammar_checker, "WAIT_SECONDS", 0.0)
    answer = httpx.post(url + "/v1/completions", json=PATHS["/v1/completions"] | {"guided_regex": "late"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert answer.headers["retry-after"]


def test_the_processes_that_check_end_with_the_server():
    before = {one.pid for one in sandboxes()}
    with running(FakeEngine()) as url:
        body = PATHS["/v1/completions"] | {"guided_regex": "only here"}
        assert httpx.post(url + "/v1/completions", json=body).status_code == 200
        own = [one for one in sandboxes() if one.pid not in before]
        assert own
    assert not any(one.is_running() for one in own)
