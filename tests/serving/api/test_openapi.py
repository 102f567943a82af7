from __future__ import annotations

import json

import httpx
import jsonschema
import msgspec
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.serving.api.answering import answers
from corepipe.serving.api.app import create_app
from corepipe.serving.api.bodies.reading import parse
from corepipe.serving.api.routes import chat, completions, info, probes, tokens
from corepipe.serving.api.routes.openapi import document
from corepipe.serving.api.table import KEYLESS_PATHS, ROUTES
from corepipe.serving.config import ServerConfig
from tests.serving.http_support import MODEL, FakeEngine, tokenizer

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
PARTS = [{"type": "text", "text": "a"}]
TEXT = {"model": MODEL, "prompt": "a", "max_tokens": 3}
TOKENS = {"return_token_ids": True, "prompt_logprobs": 1}
RICH = {"logprobs": 2, "echo": True, "n": 2, "device_metrics": True}


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("keys", [(), ("k",)])
def test_the_document_has_the_routes_of_the_application_and_no_others(split, keys):
    config = ServerConfig(admin_port=0 if split else None, api_keys=keys, admin_api_keys=keys)
    app = create_app(FakeEngine(), tokenizer(), EngineConfig(model="tiny"), config, "0")
    for one in [app, *app.state.others.values()]:
        operations = {
            (route.path.replace(":path}", "}"), method.lower())
            for route in one.router.routes
            for method in route.methods
        }
        served = json.loads(one.state.document.body)
        described = {(path, method) for path, item in served["paths"].items() for method in item}
        assert described == operations
        secured = {
            path for path, item in served["paths"].items() if "security" not in next(iter(item.values()))
        }
        assert secured == served["paths"].keys() - KEYLESS_PATHS
        assert served["security"] == ([{"key": []}, {"named": []}] if keys else [])


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/completions", TEXT, completions.Completion),
        ("/v1/completions", TEXT | RICH, completions.Completion),
        ("/v1/completions", TEXT | {"stop": "b"}, completions.Completion),
        ("/v1/chat/completions", CHAT, chat.ChatCompletion),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}, chat.ChatCompletion),
        ("/v1/completions", TEXT | RICH | TOKENS, completions.Completion),
        ("/v1/chat/completions", CHAT | TOKENS, chat.ChatCompletion),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, tokens.Tokens),
        ("/tokenize", {"messages": CHAT["messages"]}, tokens.Tokens),
        ("/detokenize", {"tokens": [5, 6]}, tokens.Text),
        ("/v1/models", None, info.ModelList),
        (f"/v1/models/{MODEL}", None, info.ModelCard),
        ("/health", None, probes.Health),
        ("/version", None, info.Version),
    ],
)
def test_answers_are_of_their_types(url, path, body, kind):
    answer = httpx.get(url + path) if body is None else httpx.post(url + path, json=body)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=kind)


def test_failures_are_of_theirs(url):
    for answer in (
        httpx.get(url + "/nowhere"),
        httpx.delete(url + "/v1/models"),
        httpx.post(url + "/v1/completions", json={}),
        httpx.post(url + "/v1/completions", content=b"{}"),
        httpx.get(url + "/health", headers={"host": "evil"}),
    ):
        assert answer.status_code >= 400
        msgspec.json.decode(answer.content, type=answers.Failure)


def request_schema(name):
    described = document(ROUTES, "0", [MODEL], keys=False)
    return {"$ref": f"#/components/schemas/{name}", "components": described["components"]}


@pytest.mark.parametrize(
    ("name", "body", "fits"),
    [
        ("CompletionRequest", TEXT, True),
        ("CompletionRequest", TEXT | {"stream_options": None, "user": "x", "temperature": None}, True),
        ("CompletionRequest", TEXT | {"temprature": 1}, False),
        ("CompletionRequest", TEXT | {"suffix": 1}, False),
        ("CompletionRequest", TEXT | {"request_id": "a b"}, False),
        ("CompletionRequest", TEXT | {"return_token_ids": True, "bad_words": ["x"]}, True),
        ("ChatRequest", CHAT | {"chat_template_kwargs": {"a": 1}, "continue_final_message": True}, True),
        ("ChatRequest", CHAT | {"prediction": {"type": "content", "content": "a"}}, True),
        ("ChatRequest", CHAT | {"prediction": {"type": "content"}}, False),
        ("CompletionRequest", TEXT | {"prompt": None}, False),
        ("CompletionRequest", TEXT | {"stream": True, "stream_options": {"include_usage": True}}, True),
        ("CompletionRequest", TEXT | {"stream": True, "stream_options": {"other": True}}, False),
        ("ChatRequest", CHAT, True),
        ("ChatRequest", CHAT | {"messages": [{"role": "user", "content": PARTS}]}, True),
        ("ChatRequest", CHAT | {"messages": [{"role": "function", "content": "a"}]}, False),
        ("ChatRequest", CHAT | {"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]}, True),
        ("ChatRequest", CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}, True),
        ("ChatRequest", CHAT | {"tools": [{"type": "function", "function": {"name": "f g"}}]}, False),
        ("ChatRequest", CHAT | {"tool_choice": "auto", "parallel_tool_calls": False}, True),
        ("ChatRequest", CHAT | {"tool_choice": {"type": "custom"}}, False),
        ("ChatRequest", CHAT | {"messages": []}, False),
        ("ChatRequest", CHAT | {"messages": [{"role": "user", "content": "a", "tool_calls": None}]}, True),
        ("TokenizeRequest", {"messages": CHAT["messages"]}, True),
    ],
)
def test_requests_fit_the_document_as_the_server_takes_them(url, name, body, fits):
    path = {one.request.__name__: one.path for one in ROUTES if one.request}[name]
    assert (httpx.post(url + path, json=body).status_code == 200) is fits
    schema = jsonschema.Draft202012Validator(request_schema(name))
    assert schema.is_valid(body) is fits


@pytest.mark.parametrize(
    "route",
    [one for one in ROUTES if one.method == "POST" and not one.request and not one.uploads],
    ids=lambda one: one.path,
)
def test_bodies_without_a_schema_may_be_anything_or_left_out(route):
    (item,) = document([route], "1", [MODEL], keys=False)["paths"].values()
    assert item["post"]["requestBody"] == {"required": False, "content": {"application/json": {"schema": {}}}}


@pytest.mark.parametrize("route", [one for one in ROUTES if one.example], ids=lambda one: one.path)
def test_examples_are_what_is_asked_there(route):
    documented = document([route], "1", [MODEL], keys=False)
    content = documented["paths"][route.path]["post"]["requestBody"]["content"]["application/json"]
    ((name, example),) = content["examples"].items()
    assert jsonschema.Draft202012Validator(request_schema(route.request.__name__)).is_valid(example["value"])
    assert example["value"] == {**route.example, **({"model": name} if name == MODEL else {})}
    parse(json.dumps(example["value"]).encode(), route.request)
