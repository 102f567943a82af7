"""POST /v1/completions, requested by the openai client and by plain HTTP."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from msgspec.structs import replace

from corepipe.engine.messages import Output, StepPace
from tests.servers import until
from tests.serving.http_support import STATS, begun, chunks_of, saying, tokenizer
from tests.wires import connected
from tests.wires import post as request

HELLO = "Hello world. "


def post(url, **fields):
    return httpx.post(url + "/v1/completions", json={"model": "tiny", "prompt": "Hi there", **fields})


def test_a_plain_answer(client):
    answer = client.completions.create(model="tiny", prompt="Hi there", max_tokens=4)
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == tokenizer().decode(tokenizer().encode(HELLO)[:4])
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        4,
        4,
        8,
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    again = client.completions.create(model="tiny", prompt="Hi there", max_tokens=4)
    assert answer.system_fingerprint == again.system_fingerprint
    assert answer.id != again.id


def test_a_stream_says_what_a_plain_answer_says(client, engine):
    engine.script = saying(HELLO, pause=0.001)
    asked = {"model": "tiny", "prompt": "Hi", "max_tokens": 20}
    plain = client.completions.create(**asked)
    chunks = [*client.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    assert "".join(c.choices[0].text for c in chunks[:-1]) == plain.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert len(chunks) > 5
    assert chunks[-1].choices == []
    assert chunks[-1].usage == plain.usage
    assert all(c.usage is None for c in chunks[:-1])


def test_several_prompts_and_choices(client, engine):
    answer = client.completions.create(model="tiny", prompt=["Hi there", "Hi"], n=2, max_tokens=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 6
    assert answer.usage.completion_tokens == 12
    assert [submit.sampling.seed for submit in engine.submitted] == [5, 6, 5, 6]
    assert [len(submit.prompt) for submit in engine.submitted] == [4, 4, 2, 2]
    chunks = list(client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=3, stream=True))
    ended = sorted(c.choices[0].index for c in chunks if c.choices[0].finish_reason)
    assert ended == [0, 1, 2, 3]


@pytest.mark.parametrize("prompt", ["Hi there", [41, 74, 265, 264], [[41, 74, 265, 264]], ["Hi there"]])
def test_prompts_in_every_shape(client, engine, prompt):
    client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    assert engine.submitted[0].prompt == tokenizer().encode("Hi there")


def test_parameters_reach_the_engine(client, engine):
    extra = {
        "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "stop_token_ids": [9], "min_tokens": 2,
        "priority": -3, "cache_salt": "mine", "temperature": 0, "top_p": 0.5, "logit_bias": {"4": 1},
    }  # fmt: skip
    client.completions.create(model="tiny", prompt="Hi", max_tokens=7, extra_body=extra)
    submit = engine.submitted[0]
    assert (submit.max_tokens, submit.min_tokens, submit.priority, submit.cache_salt) == (7, 2, -3, "mine")
    assert set(submit.stop_ids) == {9, *tokenizer().eos_ids}
    drawn = submit.sampling
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p) == (0, 0.5, 5, 0.1)
    assert (drawn.repetition_penalty, drawn.logit_bias, drawn.logprobs) == (1.2, {4: 1.0}, None)
    client.completions.create(model="tiny", prompt="Hi", extra_body={"ignore_eos": True})
    assert engine.submitted[1].stop_ids == []
    assert engine.submitted[1].max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_the_request(url, client, engine, stream):
    engine.script = saying(HELLO, pause=0.002)
    fields = {"stop": ["zz", "wor"], "max_tokens": 100}
    if stream:
        said = chunks_of(post(url, **fields, stream=True, stream_options={"include_usage": True}))
        text = "".join(event["choices"][0]["text"] for event in said[:-1])
        choice, usage = said[-2]["choices"][0], said[-1]["usage"]
    else:
        answer = post(url, **fields).json()
        choice, usage = answer["choices"][0], answer["usage"]
        text = choice["text"]
    assert text == "Hello "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "wor")
    tokens = tokenizer().encode(HELLO)
    used = next(n for n in range(len(tokens)) if "wor" in tokenizer().decode(tokens[:n]))
    assert usage["completion_tokens"] == used
    assert engine.aborted == [engine.submitted[0].id]


def test_one_choice_of_several_stops(url, client, engine):
    def script(submit):
        return saying("abc def " if submit.id.endswith("0") else "xyz ", pause=0.002)(submit)

    engine.script = script
    first, second = post(url, n=2, stop="def", max_tokens=12).json()["choices"]
    assert (first["text"], first["finish_reason"]) == ("abc ", "stop")
    assert (second["finish_reason"], second["stop_reason"]) == ("length", None)
    assert engine.aborted == [engine.submitted[0].id]


def test_echo_of_token_ids_and_of_no_token_more(url, client, engine):
    answer = post(url, prompt=tokenizer().encode("Hi there"), echo=True, max_tokens=0).json()
    assert answer["choices"][0]["text"] == "Hi there"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert engine.submitted[0].max_tokens == 1


def test_device_times_of_a_slow_host_are_marked(url, client, engine):
    """Plain answers and streams say so, with the time scale that would be enough."""
    engine.on_stats(replace(STATS, paces=[StepPace(1.0, 0.01, 0.02)] * 100))
    device = post(url, device_metrics=True).json()["corepipe"]
    assert (device["valid"], device["time_scale_needed"], device["emulated"]) == (False, 3.2, True)
    said = chunks_of(post(url, device_metrics=True, max_tokens=5, stream=True))
    assert said[-1]["corepipe"] == device
    engine.on_stats(replace(STATS, paces=[StepPace(1.0, 0.01, 0.0)] * 10_000))
    assert post(url, device_metrics=True).json()["corepipe"]["valid"] is True


def test_device_times_by_field_and_by_header(url, client):
    by_field = post(url, device_metrics=True).json()["corepipe"]
    assert (by_field["time_to_first_token_ms"], by_field["arrived_at_s"], by_field["valid"]) == (
        12.5,
        0.5,
        True,
    )
    body = {"model": "tiny", "prompt": "Hi"}
    asked = httpx.post(url + "/v1/completions", json=body, headers={"x-corepipe-device": "1"})
    assert asked.json()["corepipe"] == by_field
    assert "corepipe" not in post(url).json()
    for options in (None, {"include_usage": True}):
        asked = post(url, device_metrics=True, stream=True, stream_options=options, n=2, max_tokens=5)
        said = chunks_of(asked)
        assert ["corepipe" in event for event in said] == [False] * (len(said) - 1) + [True]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": ["a", ""]}, "prompt", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_type"),
        ({"prompt": [[1], 1]}, "prompt", "invalid_type"),
        ({"prompt": [10**6]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": ["a"] * 129}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 17, "n": 8}, "prompt", "invalid_value"),
        ({"prompt": [5] * 256}, "prompt", "context_length_exceeded"),
        ({"prompt": [5] * 250, "max_tokens": 7}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", "invalid_value"),
        ({"best_of": 3}, "best_of", "unsupported_value"),
        ({"n": 9}, "n", "invalid_value"),
    ],
)  # fmt: skip
def test_refusals(url, client, engine, fields, param, code):
    answer = post(url, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert engine.submitted == []


def test_an_unknown_model_is_not_quoted_at_length(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="x" * 10_000, prompt="Hi")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("fields", [{"best_of": 0}, {"best_of": 0, "n": 2}, {"best_of": 2, "n": 2}])
def test_a_best_of_that_asks_for_nothing_is_taken(url, client, engine, fields):
    """OpenAI's definition allows values from 0."""
    answer = post(url, **fields)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == fields.get("n", 1)


def test_the_context_may_be_filled_to_the_last_token(url, client, engine):
    assert post(url, prompt=[5] * 250, max_tokens=6).status_code == 200
    assert post(url, prompt=[5] * 255).status_code == 200
    assert [submit.max_tokens for submit in engine.submitted] == [6, 1]


def fails(kind=None, error="because"):
    return lambda submit: [Output(submit.id, finish_reason="error", error=error, error_kind=kind)]


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_engine_have_their_status(client, engine, stream):
    def refused(script):
        engine.script = script
        with pytest.raises(openai.APIStatusError) as caught:
            client.completions.create(model="tiny", prompt="Hi", stream=stream)
        return caught.value

    full = refused(fails("overloaded", "queue is full"))
    assert (full.status_code, full.response.headers["retry-after"]) == (429, "1")
    assert "queue is full" in full.message
    invalid = refused(fails("invalid"))
    assert (invalid.status_code, "because" in invalid.message) == (400, True)
    contradicted = refused(fails("contradiction"))
    assert (contradicted.param, contradicted.code) == ("allowed_token_ids", "constraint_failed")
    failed = refused(fails())
    assert (failed.status_code, "because" in failed.message) == (500, False)
    assert refused(lambda submit: [Output(submit.id, finish_reason="abort")]).status_code == 503


def test_an_error_in_mid_stream_ends_it_without_done(url, client, engine):
    engine.script = lambda submit: [Output(submit.id, [41]), 0.02, *fails("overloaded")(submit)]
    said = post(url, stream=True).text
    assert "[DONE]" not in said
    assert '"code":"rate_limit_exceeded"' in said.splitlines()[-2]
    with pytest.raises(openai.APIError, match="because"):
        list(client.completions.create(model="tiny", prompt="Hi", stream=True))


def all_given_up(engine):
    return sorted(engine.aborted) == sorted(submit.id for submit in engine.submitted)


@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_ends_its_requests(url, client, engine, n):
    engine.script = begun(HELLO)
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 200, "n": n}
    with connected(url) as leaving:
        leaving.sendall(request("/v1/completions", json.dumps(body).encode()))
        assert until(lambda: len(engine.submitted) == n)
        assert engine.aborted == []
    assert until(lambda: all_given_up(engine))


@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_a_stream_ends_its_requests(client, engine, n):
    engine.script = begun(HELLO)
    with client.completions.create(model="tiny", prompt="Hi", max_tokens=200, n=n, stream=True) as stream:
        next(iter(stream))
    assert len(engine.submitted) == n
    assert until(lambda: all_given_up(engine))
