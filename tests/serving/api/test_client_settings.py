"""Settings that clients send and cannot leave out: accepted without effect, honoured, or refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from corepipe.serving.api.bodies.client_settings import IGNORED, SETTINGS, ClientSetting, SettingPlace
from corepipe.serving.api.table import ROUTES
from tests.engine.encoder_support import EMBED, SCORE, bert, computing
from tests.serving.api.test_models import A, pair, several
from tests.serving.http_support import MODEL, FakeEngine, replaying, running, saying, tokenizer

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
SAID = "Hello world. "
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "Hi there", "max_tokens": 4}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [PARTS], "max_tokens": 4}
CALLED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 4,
    "messages": [
        {"role": "system", "content": "Be brief."},
        PARTS,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "none",
}
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
OPEN = "{% for m in messages %}{{ m.content }}{% endfor %}[{{ verbosity }} {{ reasoning_effort }}]<think>\n"
ASK = {
    SettingPlace.CHAT: (CHATS, CHAT),
    SettingPlace.COMPLETION: (COMPLETIONS, TEXT),
    SettingPlace.TEXTS: ("/v1/embeddings", {"model": MODEL, "input": "the cat"}),
    SettingPlace.RESPONSES: ("/v1/responses", {"model": MODEL, "input": "the cat", "max_output_tokens": 4}),
    SettingPlace.ANTHROPIC: ("/v1/messages", CHAT),
    SettingPlace.STREAM_OPTIONS: (CHATS, CHAT | {"stream": True}),
}
EXAMPLES: dict[object, object] = {
    "keep_alive": "5m",
    "session_id": "a",
    "client_metadata": {"turn_id": "a"},
    "cache_control": EPHEMERAL,
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "prompt_cache_breakpoint": {"mode": "explicit"},
    "vllm_xargs": {"a": 1, "b": ["c", 2.5]},
    "stream_interval": 3,
    "repeat_penalty": 1.1,
    "n_predict": 3,
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "inference_geo": "eu",
    "user_profile_id": "a",
    "workspace_id": "a",
    "diagnostics": {"previous_message_id": "msg_1"},
    "billing_policy": {"type": "billing_policy", "bill_to": "self"},
    "fallbacks": [{"model": "a"}],
    "id_slot": -1,
    "ttl": 300,
    "cache_prompt": True,
}


class Servers:
    """Starts a lenient and a strict server of a chat model, and one of an embedding model."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.engine = FakeEngine(saying(SAID))
        start: Callable[..., str] = lambda *args, **settings: stack.enter_context(running(*args, **settings))  # noqa: E731
        self.lenient = start(self.engine)
        self.strict = start(self.engine, strict=True)
        encoder = FakeEngine(computing(EMBED))
        self.vectors = start(encoder, text=bert(), task=EMBED)
        self.strict_vectors = start(encoder, text=bert(), task=EMBED, strict=True)

    def of(self, place: SettingPlace, *, strict: bool = False) -> str:
        if place is SettingPlace.TEXTS:
            return self.strict_vectors if strict else self.vectors
        return self.strict if strict else self.lenient


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(stack)


def post(url: str, path: str, body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60)


def ignored(answer: httpx.Response) -> str | None:
    assert answer.status_code == 200, answer.text
    return answer.headers.get(IGNORED)


def refused(answer: httpx.Response) -> str:
    """Returns the field that an error 400 names."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return str(error["param"]) if "param" in error else re.findall(r"'([^']+)'", error["message"])[0]


def rows(*, honoured: bool) -> list[tuple[ClientSetting, str, SettingPlace]]:
    return [
        (one, name, place)
        for one in SETTINGS
        if bool(one.read_as) is honoured
        for name in one.fields
        for place in one.places
    ]


def named(one: ClientSetting | str | SettingPlace) -> str:
    """Returns a part of a test's name."""
    return "" if isinstance(one, ClientSetting) else one.name if isinstance(one, SettingPlace) else one


def value_of(row: ClientSetting, name: str) -> object:
    return row.takes.values[0] if row.takes.values else EXAMPLES.get(name, 1 if name not in FLAGS else True)


FLAGS = ("timings_per_token", "return_progress", "include_reasoning")


def path_of(place: SettingPlace) -> str:
    """Returns the path of a place's object, as answers name it."""
    return place.in_words.strip("`") + "." if "`" in place.in_words else ""


def asked(place: SettingPlace, name: str, value: object) -> tuple[str, dict[str, Any]]:
    """Returns the path, and a body that has the setting in this place."""
    if place in ASK:
        path, body = ASK[place]
        return path, body | (
            {"stream_options": {name: value}} if place is SettingPlace.STREAM_OPTIONS else {name: value}
        )
    body = msgspec.json.decode(msgspec.json.encode(CALLED))
    found: Any = body
    for step in re.findall(r"\[\]|\w+", path_of(place)):
        if step != "[]":
            found = next(
                one[step] for one in (found if isinstance(found, list) else [found]) if one.get(step)
            )
            if isinstance(found, str):  # content that is text has no parts
                found = body["messages"][1]["content"]
    (found[-1] if isinstance(found, list) else found)[name] = value
    return CHATS, body


# The table


@pytest.mark.parametrize(("row", "name", "place"), rows(honoured=False), ids=named)
def test_a_setting_without_effect_is_named_and_changes_no_answer(servers, row, name, place):
    path, body = asked(place, name, value_of(row, name))
    url = servers.of(place)
    answer = post(url, path, body)
    assert ignored(answer) == path_of(place) + name
    alone = dict(asked(place, name, None)[1])
    plain = post(url, path, alone)
    assert ignored(plain) is None, "null stands for the default"
    if not body.get("stream"):
        assert answer.json().get("choices") == plain.json().get("choices")
        assert answer.json().get("data") == plain.json().get("data")
        assert answer.json().get("content") == plain.json().get("content")


@pytest.mark.parametrize(("row", "name", "place"), rows(honoured=False) + rows(honoured=True), ids=named)
def test_a_strict_server_refuses_each_by_its_name(servers, row, name, place):
    path, body = asked(place, name, value_of(row, name))
    assert (
        refused(post(servers.of(place, strict=True), path, body)) == path_of(place) + name or row.by_template
    )


@pytest.mark.parametrize(("row", "name", "place"), rows(honoured=False), ids=named)
def test_another_value_of_it_is_refused_by_its_name(servers, row, name, place):
    for wrong in ({"x": {"y": [1]}}, [["x"]], "nonsense" * 100):
        path, body = asked(place, name, wrong)
        param = refused(post(servers.of(place), path, body))
        assert name in param or param.startswith("tools"), param


def test_rows_are_whole_and_each_place_has_each_field_once():
    seen = [(place, name) for one in SETTINGS for place in one.places for name in one.fields]
    assert len(set(seen)) == len(seen)
    requests = {one.request.__name__: one for one in ROUTES if one.request is not None}
    for one in SETTINGS:
        assert one.fields
        assert one.why
        assert one.clients
        assert one.takes.values or one.takes.type is not None
        assert None not in one.takes.values
        for place in one.places:
            for schema in place.types:
                if schema in requests and one.read_as:
                    assert one.read_as in requests[schema].request.__struct_fields__
                if schema in requests and not one.read_as:
                    neutral = requests[schema].request.neutral
                    for name in one.fields:
                        assert name not in requests[schema].request.__struct_fields__
                        assert not any(name in neutral and neutral[name].accepts(v) for v in one.takes.values)


def test_the_document_says_who_takes_them(servers):
    lenient, strict = (httpx.get(url + "/openapi.json").json() for url in (servers.lenient, servers.strict))
    for path in (CHATS, COMPLETIONS, "/v1/embeddings", "/tokenize"):
        told = lenient["paths"][path]["post"]["responses"]["200"]
        assert told["headers"][IGNORED]["schema"] == {"type": "string"}
        assert "headers" not in strict["paths"][path]["post"]["responses"]["200"]
    schemas = lenient["components"]["schemas"], strict["components"]["schemas"]
    for name, field in (
        ("ChatRequest", "keep_alive"),
        ("TextPart", "cache_control"),
        ("Tool", "cache_control"),
    ):
        assert [field in one[name]["properties"] for one in schemas] == [True, False]
    assert ["model" in one["ChatRequest"]["required"] for one in schemas] == [False, True]


# Several, streams, other routes


@pytest.mark.parametrize("stream", [False, True])
def test_all_are_named_once_in_one_header(servers, stream):
    body = CALLED | {"store": True, "keep_alive": -1, "service_tier": "auto", "user": "x", "stream": stream}
    body["messages"] = [
        one | {"cache_control": EPHEMERAL} for one in [*CALLED["messages"], {"role": "user", "content": "?"}]
    ]
    answer = post(servers.lenient, CHATS, body)
    assert ignored(answer) == "keep_alive, messages[].cache_control"
    assert ignored(post(servers.lenient, CHATS + "/render", body | {"stream": False})) == ignored(answer)
    tokens = {name: body[name] for name in ("messages", "tools")}
    assert ignored(post(servers.lenient, "/tokenize", tokens)) == "messages[].cache_control"


def test_a_page_of_an_allowed_origin_may_read_the_header():
    with running(FakeEngine(), allowed_origins=("https://ui.example",)) as url:
        page = {"origin": "https://ui.example"}
        answer = httpx.post(url + COMPLETIONS, json=TEXT | {"store": True}, headers=page)
        assert IGNORED in answer.headers["access-control-expose-headers"]


def test_a_recorded_answer_names_them_too(tmp_path):
    body = TEXT | {"store": True, "stream": True}
    with running(FakeEngine(), record=tmp_path) as url:
        told = ignored(post(url, COMPLETIONS, body))
    with replaying(tmp_path) as url:
        assert ignored(post(url, COMPLETIONS, body)) == told == "store"


@pytest.mark.parametrize(("path", "body"), [
    ("/rerank", {"query": "a", "documents": ["a cat", "a dog"]}),
    ("/score", {"text_1": "a", "text_2": "a cat"}),
])  # fmt: skip
def test_routes_of_texts_take_what_everybody_sends(path, body):
    with running(FakeEngine(computing(SCORE)), text=bert(), task=SCORE) as url:
        assert ignored(post(url, path, body | {"ttl": 60, "keep_alive": 0})) == "ttl, keep_alive"
        assert refused(post(url, path, body | {"store": True})) == "store"


# What is honoured


def without(left_out: str, path: str) -> dict[str, Any]:
    return {name: value for name, value in (CHAT if path == CHATS else TEXT).items() if name != left_out}


def drawn(servers: Servers, path: str, **fields: Any) -> Any:
    answer = post(servers.lenient, path, without("max_tokens", path) | fields)
    assert ignored(answer) is None
    return servers.engine.submitted[-1]


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_other_names_are_read_by_ours(servers, path):
    assert drawn(servers, path, repeat_penalty=1.2).sampling.repetition_penalty == 1.2
    assert drawn(servers, path, repeat_penalty=1.2, repetition_penalty=1.2).sampling.repetition_penalty == 1.2
    assert drawn(servers, path, n_predict=3).max_tokens == 3
    assert drawn(servers, path, n_predict=3, max_tokens=None).max_tokens == 3
    base = TEXT if path == COMPLETIONS else CHAT
    assert refused(post(servers.lenient, path, base | {"n_predict": 3})) == "n_predict"
    assert refused(post(servers.lenient, path, base | {"repeat_penalty": "much"})) == "repeat_penalty"
    both = {"repeat_penalty": 1.2, "repetition_penalty": 1.1}
    assert refused(post(servers.lenient, path, base | both)) == "repeat_penalty"


@pytest.mark.parametrize(("path", "names"), [
    (COMPLETIONS, ("max_tokens", "n_predict")),
    (CHATS, ("max_tokens", "n_predict", "max_completion_tokens")),
])  # fmt: skip
def test_minus_one_is_as_many_tokens_as_fit(servers, path, names):
    for name in names:
        submit = drawn(servers, path, **{name: -1})
        assert submit.max_tokens == 256 - len(submit.prompt)
    assert drawn(servers, path, max_tokens=-1, truncate_prompt_tokens=-1).prompt
    for wrong in (-2, 0):
        base = TEXT if path == COMPLETIONS else CHAT
        assert refused(post(servers.lenient, path, base | {"max_tokens": wrong})) == "max_tokens"


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, COMPLETIONS + "/render"])
@pytest.mark.parametrize("model", [{}, {"model": None}])
def test_the_one_model_need_not_be_named(servers, path, model):
    body = without("model", path)
    answer = post(servers.lenient, path, body | model)
    assert ignored(answer) is None
    told = answer.json()
    assert (told[0] if isinstance(told, list) else told)["model"] == MODEL
    error = post(servers.strict, path, body | model).json()["error"]
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


def test_one_of_several_must_be_named():
    with several(pair()) as url:
        body = {"prompt": "a", "max_tokens": 1}
        assert refused(post(url, COMPLETIONS, body)) == "model"
        assert ignored(post(url, COMPLETIONS, body | {"model": A, "store": True})) == "store"
        described = httpx.get(url + "/openapi.json").json()["components"]["schemas"]
        assert "model" in described["CompletionRequest"]["required"]


# What depends on the chat template


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "verbosity": "low"}, "reasoning_effort, verbosity"),
        ({"reasoning_effort": "none", "verbosity": "medium"}, None),
    ],
)
def test_what_a_template_has_no_words_for_is_named(fields, named):
    with running(FakeEngine(), chat_template=TEMPLATE) as url:
        assert ignored(post(url, CHATS, CHAT | fields)) == named
        assert ignored(post(url, CHATS, CHAT | fields | {"stream": True})) == named
    with running(FakeEngine(), chat_template=TEMPLATE, strict=True) as url:
        answer = post(url, CHATS, CHAT | fields)
        if named is None:
            ignored(answer)
        else:
            assert refused(answer) == named.partition(",")[0]


@pytest.mark.parametrize("strict", [False, True])
def test_what_it_has_words_for_is_honoured(strict):
    engine = FakeEngine()
    with running(engine, chat_template=OPEN, strict=strict) as url:
        answer = post(url, CHATS, CHAT | {"reasoning_effort": "high", "verbosity": "low"})
        assert ignored(answer) is None
        said = tokenizer().decode(engine.submitted[-1].prompt, skip_special_tokens=False)
        assert said.startswith("Hi[low high]")


def test_reasoning_is_left_out_where_it_is_not_wanted():
    engine = FakeEngine(saying("hm\n</think>\nYes.", ends="stop", pause=0.001))
    body = CHAT | {"max_tokens": 60}
    with running(engine, chat_template=OPEN, reasoning_parser="qwen3") as url:
        assert post(url, CHATS, body).json()["choices"][0]["message"]["reasoning"] == "hm"
        quiet = post(url, CHATS, body | {"include_reasoning": False})
        assert ignored(quiet) is None
        message = quiet.json()["choices"][0]["message"]
        assert message["content"] == "Yes."
        assert "reasoning" not in message
        streamed = post(url, CHATS, body | {"include_reasoning": False, "stream": True}).text
        assert "reasoning" not in streamed
        assert "".join(re.findall(r'"content":"([^"]*)"', streamed)) == "Yes."
