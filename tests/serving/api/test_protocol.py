"""The lists of fields: honoured, asking for nothing, refused by name."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.params import NUMBERS
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.serving.api.bodies.reading import check_complexity, decode, parse
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.routes.chat import ChatRequest
from corepipe.serving.api.routes.completions import CompletionRequest

COMPLETION = {"model": "m", "prompt": "hi"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def completion(**fields):
    return parse(json.dumps(COMPLETION | fields).encode(), CompletionRequest)


def chat(**fields):
    return parse(json.dumps(CHAT | fields).encode(), ChatRequest)


def refusal(ask, **fields):
    with pytest.raises(ApiError) as caught:
        ask(**fields)
    assert caught.value.status == 400
    return caught.value


NO_OBJECTS = [
    b"", b"{", b"{}x", b"[]", b'"x"', b"42", b"null", b"true", b"\xef\xbb{}", b'{"a":NaN}',
    b'{"a":1e999}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":"\\ud800"}', b'{"a":"\xff"}',
    b'{"a":' + b"9" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("body", NO_OBJECTS)
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(ApiError) as caught:
        decode(body)
    assert caught.value.status == 400
    assert len(caught.value.message) <= 500


@pytest.mark.parametrize("name", ["foo", "guided_yaml", "beam", "n ", "", "x" * 5000, "kv_transfer_params"])
@pytest.mark.parametrize("value", [None, 1])
def test_unknown_parameters_are_refused_by_name(name, value):
    for ask in (completion, chat):
        error = refusal(ask, **{name: value})
        assert error.code == "unsupported_parameter"
        assert error.param is not None
        assert error.param[:100] == name[:100]
        assert len(error.param) <= 200
        assert len(error.message) <= 500


@pytest.mark.parametrize(
    ("ask", "neutral"), [(completion, CompletionRequest.neutral), (chat, ChatRequest.neutral)]
)
def test_neutral_values_are_accepted_and_others_refused(ask, neutral):
    for name, accepted in neutral.items():
        ask(**{name: None})
        for value in accepted.values:
            ask(**{name: value})
        error = refusal(ask, **{name: 12345})
        assert (error.param, error.code) == (name, "unsupported_parameter")


def test_neutral_values_are_compared_by_type_too():
    assert refusal(completion, store=0).param == "store"
    assert refusal(completion, length_penalty=True).param == "length_penalty"
    completion(length_penalty=1)


@pytest.mark.parametrize("ask", [completion, chat])
def test_null_stands_for_the_default(ask):
    names = type(ask()).__struct_fields__
    required = {"model", "prompt", "messages"}
    assert ask(**{name: None for name in names if name not in required}) == ask()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", -1), ("n", 129), ("n", 10**9), ("n", "2"), ("n", 1.5), ("n", True),
        ("max_tokens", -2), ("max_tokens", 10**12), ("max_tokens", 2**63), ("max_tokens", "1"),
        ("temperature", -1), ("temperature", 2.0001), ("temperature", "hot"), ("temperature", True),
        ("top_p", -0.1), ("top_p", 1.1), ("top_k", -5), ("top_k", 1.5), ("min_p", 2), ("min_p", -0.1),
        ("presence_penalty", 1e9), ("frequency_penalty", -2.1), ("repetition_penalty", 0),
        ("repetition_penalty", 5e-324),
        ("seed", -(2**63) - 1), ("seed", 2**64), ("seed", 1.5), ("stream", "yes"), ("stream", 1),
        ("stop", 5), ("stop", [""]), ("stop", ""), ("stop", list("abcde")), ("stop", "x" * 257),
        ("stop", [1]),
        ("stop_token_ids", [-1]), ("stop_token_ids", "1"), ("logit_bias", {"1": 101}), ("logit_bias", [1]),
        ("logit_bias", {str(i): 0 for i in range(1025)}), ("min_tokens", -1), ("priority", 2**40),
        ("stream_options", 1), ("stream_options", {"include_usage": 1}), ("model", 1), ("ignore_eos", "no"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ask", [completion, chat])
def test_wrong_values_are_refused_with_their_field(ask, field, value):
    assert (refusal(ask, **{field: value}).param or "").startswith(field)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = sorted({*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__, *ChatRequest.neutral})


def outcome(ask, fields):
    try:
        request = ask(**fields)
        request.check(100, 8)
        request.sampling(0, None, None)
    except ApiError as error:
        return error
    return None


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
@settings(deadline=None, max_examples=300)
def test_any_value_in_any_field_is_taken_or_refused(fields):
    for ask in (completion, chat):
        error = outcome(ask, fields)
        assert error is None or (error.status == 400 and error.param)
        assert error is None or len(error.body()) < 3000


@pytest.mark.parametrize(
    ("ask", "fields", "param"),
    [
        (completion, {"stream_options": {"include_usage": True}}, "stream_options"),
        (completion, {"n": 9}, "n"),
        (completion, {"best_of": 2}, "best_of"),
        (completion, {"best_of": 1, "n": 2}, "best_of"),
        (completion, {"stop_token_ids": [100]}, "stop_token_ids"),
        (completion, {"logit_bias": {"abc": 1}}, "logit_bias"),
        (completion, {"logit_bias": {"100": 1}}, "logit_bias"),
        (completion, {"logit_bias": {"-1": 1}}, "logit_bias"),
        (completion, {"logit_bias": {"²": 1}}, "logit_bias"),
        (completion, {"logit_bias": {"9" * 100: 1}}, "logit_bias"),
        (chat, {"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_rules_between_fields(ask, fields, param):
    with pytest.raises(ApiError) as caught:
        ask(**fields).check(vocab_size=100, max_num_seqs=8)
    assert caught.value.param == param


def test_stream_options_have_lists_of_their_own():
    asked = completion(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert asked.usage_chunk
    error = refusal(completion, stream=True, stream_options={"include_obfuscation": True})
    assert error.param == "stream_options.include_obfuscation"


def test_sampling_is_what_was_asked_for():
    asked = completion(
        temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=7, logit_bias={"5": -100},
        repetition_penalty=1.1, presence_penalty=1, frequency_penalty=-1,
    )  # fmt: skip
    drawn = msgspec.structs.asdict(asked.sampling(2, 3, None))
    assert drawn == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "seed": 9, "logit_bias": {5: -100.0},
        "repetition_penalty": 1.1, "presence_penalty": 1.0, "frequency_penalty": -1.0, "logprobs": 3,
        "prompt_logprobs": None, "allowed_token_ids": None,
    }  # fmt: skip
    assert completion(seed=2**63 - 1).sampling(1, None, None).seed == 0


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"{" + b",".join(b'"k%d":1' % i for i in range(330_000)) + b"}", "strings"),
        (b'{"messages":[' + b'{"role":"user","content":"a"},' * 100_000 + b"{}]}", "strings"),
        (b'{"prompt":[' + b"[5]," * 700_000 + b"[5]]}", "arrays and objects"),
        (b'{"prompt":[' + b"5," * 1_300_000 + b"5]}", "values"),
        (b'{"prompt":["' + b'\\",[' * 100_000 + b'"' + b',"\\\\"' * 40_000 + b"]}", "strings"),
    ],
)
def test_a_body_of_too_many_values_is_refused_before_they_are_made(body, what):
    with pytest.raises(ApiError) as caught:
        decode(body)
    assert (caught.value.status, caught.value.code) == (400, "request_too_complex")
    assert what in caught.value.message


@pytest.mark.parametrize(
    "text", ["a, b [c] {d}: " * 250_000, '"' * 1_500_000, "\\" * 1_500_000, '\\"[,' * 500_000]
)
def test_long_text_weighs_nothing(text):
    body = msgspec.json.encode({"prompt": text})
    assert decode(body) == {"prompt": text}


@settings(deadline=None)
@given(
    st.recursive(
        st.text('\\",[{:a', max_size=6) | st.integers(0, 9),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('\\"', max_size=3), inner),
    )
)
def test_a_body_weighs_what_is_there_whatever_its_strings_hold(value):
    def count(one):
        if isinstance(one, dict):
            inner = [count(item) for pair in one.items() for item in pair]
        elif isinstance(one, list):
            inner = [count(item) for item in one]
        else:
            return Counter(strings=int(isinstance(one, str)))
        return sum(inner, Counter({"arrays and objects": 1, "commas": max(0, len(one) - 1)}))

    found = count([value])
    exact = {name: found[name] for name in ("strings", "arrays and objects")} | {
        "values": found["commas"] + 1
    }
    body = msgspec.json.encode([value])
    check_complexity(body, exact)
    for what, count in exact.items():
        with pytest.raises(ApiError, match=what):
            check_complexity(body, exact | {what: count - 1})


@pytest.mark.parametrize("asked", [CompletionRequest, ChatRequest])
def test_what_http_takes_any_sampler_can_follow(asked):
    fields = msgspec.json.schema(asked)["$defs"][asked.__name__]["properties"]
    told = NUMBERS.keys() & fields.keys() & {*TokenSampling.__struct_fields__}
    assert len(told) >= 8
    for name in told:
        kinds = fields[name].get("anyOf", [fields[name]])
        for one in (kind for kind in kinds if kind["type"] in ("integer", "number")):
            least = one.get("minimum", one.get("exclusiveMinimum"))
            assert NUMBERS[name].least <= least or "exclusiveMinimum" in one, name
            assert one["maximum"] <= NUMBERS[name].most, name


def test_what_is_not_said_is_what_the_engine_takes_it_for():
    drawn = msgspec.structs.asdict(TokenSampling())
    for asked in (completion(), chat()):
        assert msgspec.structs.asdict(asked.sampling(0, None, None)) == drawn
