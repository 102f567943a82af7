"""Variants of JSON in bodies: integers with a fraction of zero, a byte order mark, NaN."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import httpx
import msgspec
import pytest
from msgspec import inspect

from corepipe.serving.api.bodies.reading import decode
from corepipe.serving.api.bodies.values import convert
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.routes.route import Audience
from corepipe.serving.api.table import ROUTES
from tests.serving.api.test_chat import plain
from tests.serving.api.test_models import pair, several
from tests.serving.api.test_protocol import chat, completion, refusal
from tests.serving.http_support import FakeEngine, replaying, running, saying

REQUESTS = sorted(
    {route.request for route in ROUTES if route.request is not None}, key=lambda one: one.__name__
)
FIELDS = [(one, name) for one in REQUESTS for name in one.__struct_fields__]


def with_integer(kind: inspect.Type) -> Any:
    """Returns a value of a type that contains an integer; None if the type has none."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        return next((found for one in kind.types if (found := with_integer(one)) is not None), None)
    if isinstance(kind, inspect.ListType):
        inner = with_integer(kind.item_type)
        return None if inner is None else [inner] * max(kind.min_length or 1, 2)
    if isinstance(kind, inspect.DictType):
        inner = with_integer(kind.value_type)
        return None if inner is None else {"1": inner}
    return max(kind.ge or 0, 1) if isinstance(kind, inspect.IntType) else None


def as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [as_floats(one) for one in value]
    return {key: as_floats(one) for key, one in value.items()} if isinstance(value, dict) else float(value)


def integers() -> Iterator[tuple[str, Any, Any]]:
    """Yields every field of every request that may have an integer: its name, its type, a value."""
    for request, name in FIELDS:
        kind = get_type_hints(request, include_extras=True)[name]
        if (value := with_integer(inspect.type_info(kind))) is not None:
            yield f"{request.__name__}.{name}", kind, value


INTEGERS = list(integers())
FOUND = {name.partition(".")[2] for name, *_ in INTEGERS}
assert {"n", "max_tokens", "seed", "top_k", "prompt", "input", "tokens", "dimensions", "top_n"} <= FOUND


@pytest.mark.parametrize(("name", "kind", "value"), INTEGERS, ids=[name for name, *_ in INTEGERS])
def test_a_number_without_a_fraction_is_an_integer(name: str, kind: Any, value: Any) -> None:
    """JSON has one kind of number: `1.0` and `1e0` equal `1`."""
    found = convert(as_floats(value), kind)
    assert found == value == msgspec.convert(value, kind)
    assert msgspec.json.encode(found) == msgspec.json.encode(value), "integers, not floats"


@pytest.mark.parametrize("wrong", [0.5, 1e300, True, "1", -2.0, 2.0**31])
def test_what_is_no_integer_within_bounds_is_refused(wrong: object) -> None:
    for ask in (completion, chat):
        assert refusal(ask, max_tokens=wrong).param == "max_tokens"


def test_integers_deep_within_a_body() -> None:
    asked = completion(prompt=[[5.0, 6], [7]], n=1e0, stop_token_ids=[3.0], logprobs=0.0, temperature=1)
    assert asked == completion(prompt=[[5, 6], [7]], n=1, stop_token_ids=[3], logprobs=0, temperature=1.0)
    assert all(type(token) is int for token in asked.prompt[0])
    kind = Annotated[dict[str, list[int] | float], msgspec.Meta(max_length=2)]
    assert str(convert({"a": [1.0, 2e1], "b": 2.0}, kind)) == "{'a': [1, 20], 'b': 2.0}"


def test_what_is_nobodys_business_stays_as_it_is() -> None:
    """Values for a template or a grammar keep the form in which the client wrote them."""
    variables = {"limit": 8.0, "other": [1.0]}
    asked = chat(chat_template_kwargs=variables, n=1.0, guided_json={"const": 1.0})
    assert str(asked.chat_template_kwargs) == str(variables)
    assert str(asked.guided_json) == "{'const': 1.0}"


def test_seeds_are_as_wide_as_openais() -> None:
    seeds = {seed: chat(seed=seed).sampling(1, None, None).seed for seed in (-(2**63), -1, 0, 2**63 - 1)}
    assert seeds == {-(2**63): -(2**63) + 1, -1: 0, 0: 1, 2**63 - 1: 0}
    assert refusal(chat, seed=-(2**63) - 1).param == "seed"
    assert refusal(chat, seed=2**63).param == "seed"
    assert refusal(chat, seed=1e19).param == "seed"


def test_a_top_p_of_0_is_greedy() -> None:
    for ask in (completion, chat):
        assert ask(top_p=0, temperature=1.5).sampling(0, None, None).temperature == 0
        assert ask(top_p=-0.0).sampling(0, None, None).temperature == 0
        assert ask(top_p=1e-9, temperature=1.5).sampling(0, None, None).temperature == 1.5


BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 2}
MESSAGES = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
POSTED = [
    route.path
    for route in ROUTES
    if route.method == "POST"
    and route.audience is not Audience.OPERATORS
    and not route.uploads
    and "{" not in route.path.replace("{model}", "")
]
SENT = {"/tokenize": {"prompt": "Hi"}, "/detokenize": {"tokens": [5]}, "/invocations": MESSAGES}


def told(answer: httpx.Response) -> tuple[int, list[dict[str, Any]]]:
    """Returns an answer without the fields that differ each time."""
    said = answer.json() if isinstance(answer.json(), list) else [answer.json()]
    for one in said:
        for name in ("id", "created", "request_id"):
            one.pop(name, None)
    return answer.status_code, said


def post(url: str, path: str, body: bytes) -> httpx.Response:
    where = url + path.replace("{model}", "tiny")
    return httpx.post(where, content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("path", POSTED)
def test_a_byte_order_mark_changes_nothing(url: str, path: str) -> None:
    sent = json.dumps(SENT.get(path, MESSAGES if "chat" in path else BODY)).encode()
    assert told(post(url, path, codecs.BOM_UTF8 + sent)) == told(post(url, path, sent))
    if path in SENT or path.startswith(("/v1/completions", "/v1/chat")):
        assert post(url, path, codecs.BOM_UTF8 + sent).status_code == 200


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_nan_is_refused_wherever_a_body_is_read(url: str, path: str, word: str) -> None:
    for sent in (f'{{"temperature": {word}}}', f'{{"a": [1, {word}]}}', f'\ufeff{{"a": {{"b":{word}}}}}'):
        answer = post(url, path, sent.encode())
        assert answer.status_code == 400
        assert f"{word.removeprefix('-')} is no JSON number" in answer.text


@pytest.mark.parametrize(
    "body", [b'{"a": nan}', b'{"a": "NaN", b}', codecs.BOM_UTF16_LE + b"{}", b"\xef\xbb{}"]
)
def test_what_else_is_no_json_is_told_as_it_is(body: bytes) -> None:
    with pytest.raises(ApiError, match="is not valid JSON") as caught:
        decode(body)
    assert "no JSON number" not in caught.value.message


def test_a_byte_order_mark_hides_no_model() -> None:
    engines = pair()
    with several(engines) as url:
        sent = json.dumps(BODY | {"model": "second/one"}).encode()
        answer = post(url, "/v1/completions", codecs.BOM_UTF8 + sent)
    assert answer.json()["model"] == "second/one"


def test_a_byte_order_mark_is_not_recorded(tmp_path: Path) -> None:
    sent = json.dumps(MESSAGES).encode()
    with running(FakeEngine(saying("Hello ")), record=tmp_path) as url:
        said = post(url, "/v1/chat/completions", codecs.BOM_UTF8 + sent).json()
    with replaying(tmp_path) as url:
        for body in (sent, codecs.BOM_UTF8 + sent):
            assert post(url, "/v1/chat/completions", body).json() == said


def test_fields_without_effect_take_such_integers_too() -> None:
    call = {"index": 0.0, "function": {"name": "f", "arguments": "{}"}}
    (turn,) = plain([{"role": "assistant", "tool_calls": [call]}])
    assert "index" not in turn["tool_calls"][0]
    with pytest.raises(ApiError, match="index"):
        plain([{"role": "assistant", "tool_calls": [call | {"index": 0.5}]}])
