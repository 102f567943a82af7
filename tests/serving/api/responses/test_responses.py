"""POST /v1/responses: items in and out, events, tools, reasoning and errors; the engine is scripted."""

from __future__ import annotations

import json

import openai
import pytest
from pydantic import BaseModel

from corepipe.engine.messages import Output
from tests.serving.api.responses.support import ENDS, create, joined, streamed, timeless, whole
from tests.serving.api.test_tools import MARKED, QWEN, ROOMY, THINKER, says, serving
from tests.serving.http_support import FakeEngine, replaying, running, saying

FUNCTION = {
    "type": "function",
    "name": "weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": None,
}
TIME = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
SPACE = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [FUNCTION]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris é"}}\n</tool_call>'
PATCH = '*** a\n"b" \\ 😀 é\n'
PATCHED = (
    "<tool_call>\n" + json.dumps({"name": "apply_patch", "arguments": {"input": PATCH}}) + "\n</tool_call>"
)
PATCHER = {"type": "custom", "name": "apply_patch"}
CALLED = {"type": "function_call", "namespace": "mcp__files"}
INSIDE = CALL.replace("weather", "mcp__files__weather")


@pytest.fixture(scope="module")
def served():
    with serving(THINKER, says("Hello é world"), drop_hosted_tools=True) as both:
        client, engine = both
        yield str(client.base_url).removesuffix("/v1/"), engine, client


@pytest.fixture
def url(served, engine):
    return served[0]


@pytest.fixture
def client(served, engine):
    return served[2]


@pytest.fixture(scope="module")
def engine(served):
    return served[1]


def text(kind: str, said: str) -> dict[str, str]:
    return {"type": kind, "text": said}


def prompt_of(engine) -> str:
    return MARKED.decode(engine.submitted[-1].prompt, skip_special_tokens=False)


def test_a_text_is_answered_whole_and_streamed_alike(url, engine):
    plain = whole(url, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    assert plain["output"][0]["content"][0]["text"] == "Hello é world"
    assert (plain["status"], plain["metadata"], plain["instructions"]) == (
        "completed",
        {"a": "b"},
        "Be brief.",
    )
    assert prompt_of(engine).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"
    )
    events = streamed(url, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    assert [one["type"] for one in events if not one["type"].endswith(".delta")] == [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *("response.content_part.added", "response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.completed"),
    ]
    assert joined(events, "output_text") == "Hello é world"
    assert timeless(events[-1]["response"]) == timeless(plain)


@pytest.mark.parametrize(
    ("said", "tools", "kinds"),
    [
        (f"<think>\nWell é\n</think>\n\nSo.\n{CALL}", [FUNCTION], ["reasoning", "message", "function_call"]),
        (f"{CALL}\n{CALL.replace('weather', 'time')}", [FUNCTION, TIME], ["function_call", "function_call"]),
        (PATCHED, [CUSTOM, FUNCTION], ["custom_tool_call"]),
        (INSIDE, [SPACE, FUNCTION], ["function_call"]),
        ("", [], ["message"]),
    ],
)
def test_items_are_the_same_in_events_and_in_the_whole(url, engine, said, tools, kinds):
    engine.script = says(said + "<|im_end|>")
    asked = {"input": "Go", "tools": tools, "include": ["reasoning.encrypted_content"]}
    plain = whole(url, **asked)
    assert [one["type"] for one in plain["output"]] == kinds
    assert {one["status"] for one in plain["output"]} == {"completed"}
    for pause in (0.0, 0.001):  # tokens one by one, and several together
        engine.script = says(said + "<|im_end|>", pause=pause)
        events = streamed(url, **asked)
        assert timeless(events[-1]["response"]) == timeless(plain)
        done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]
        for kind, field in (("function_call_arguments", "arguments"), ("custom_tool_call_input", "input")):
            assert joined(events, kind) == "".join(one.get(field, "") for one in done)


def test_calls_name_the_tools_of_the_client(url, engine):
    engine.script = says(INSIDE)
    (call,) = whole(url, input="Go", tools=[SPACE, FUNCTION])["output"]
    assert (call["namespace"], call["name"]) == ("mcp__files", "weather")
    assert json.loads(call["arguments"]) == {"city": "Paris é"}
    engine.script = says(PATCHED)
    (call,) = whole(url, input="Go", tools=[CUSTOM])["output"]
    assert (call["name"], call["input"]) == ("apply_patch", PATCH)


def test_what_was_said_before_goes_to_the_template(url, engine):
    back = [
        {"role": "developer", "content": [text("input_text", "Rules.")]},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{**text("output_text", "c"), "x": 1}]},
        {
            "type": "function_call",
            "call_id": "q",
            "name": "weather",
            "arguments": "{}",
            "namespace": "mcp__files",
        },
        {"type": "custom_tool_call", "call_id": "r", "name": "apply_patch", "input": "p", "unknown": 1},
        {"type": "function_call_output", "call_id": "q", "output": [text("input_text", "d")]},
        {"type": "custom_tool_call_output", "call_id": "r", "output": "e"},
    ]
    answer = create(url, input=back, tools=[SPACE, CUSTOM])
    assert answer.status_code == 200
    assert answer.headers["x-corepipe-ignored"] == "input[].content[].x, input[].unknown"
    said = prompt_of(engine)
    assert said.index("Rules.") < said.index(
        "<think>Hm</think>c<tool_call>mcp__files__weather {}</tool_call>"
    )
    assert '<tool_call>apply_patch {"input": "p"}</tool_call>' in said
    assert "(q)" in said
    assert "(r)" in said


def test_sealed_reasoning_comes_back_and_nobody_elses(url, engine):
    engine.script = says("<think>\nWell\n</think>\n\nSo")
    asked = {"input": "Go", "include": ["reasoning.encrypted_content"]}
    thought, message = whole(url, **asked)["output"]
    bare = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    whole(url, input=[{"role": "user", "content": "x"}, bare, message, {"role": "user", "content": "y"}])
    assert "<think>Well" in prompt_of(engine)
    refused = create(url, input=[{**bare, "encrypted_content": "gAAAA"}])
    assert refused.json()["error"]["param"] == "input[0].encrypted_content"


def test_hosted_tools_are_dropped_and_named_where_the_server_says_so(url):
    answer = create(url, input="x", tools=[{"type": "web_search"}, FUNCTION])
    assert answer.headers["x-corepipe-ignored"] == "tools[0]:web_search"
    assert answer.json()["dropped_tools"] == ["web_search"]
    assert [one["name"] for one in answer.json()["tools"]] == ["weather"]
    with serving(QWEN, says("x")) as (client, _):
        with pytest.raises(openai.BadRequestError, match="--drop-hosted-tools") as caught:
            client.responses.create(model="tiny", input="x", tools=[{"type": "web_search"}])
        assert caught.value.param == "tools[0].type"


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ("required", {"apply_patch", "mcp__files__weather"}),
        (PATCHER, {"apply_patch"}),
        ({"type": "function", "name": "mcp__files__weather"}, {"mcp__files__weather"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "apply_patch"}],
            },
            {"apply_patch"},
        ),
        ("none", set()),
    ],
)
def test_choices_of_tools_constrain_the_call(url, engine, choice, offered):
    answer = whole(url, input="x", tools=[SPACE, CUSTOM], tool_choice=choice)
    assert answer["tool_choice"] == choice
    grammar = engine.submitted[-1].grammar
    assert {name for name in ("apply_patch", "mcp__files__weather") if name in grammar} == offered


def test_text_formats_constrain_the_answer(client, engine):
    class City(BaseModel):
        name: str

    engine.script = says('{"name": "Paris"}')
    parsed = client.responses.parse(model="tiny", input="x", text_format=City)
    assert parsed.output_parsed == City(name="Paris")
    assert "name" in engine.submitted[-1].grammar


def test_an_answer_that_is_cut_is_incomplete(url, engine):
    engine.script = says("Hello", ends="length")
    last = streamed(url, input="x", max_output_tokens=3)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_logprobs_are_there_if_they_are_asked_for():
    engine = FakeEngine(saying("Hello world", ends="stop"), ROOMY)
    asked = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with running(engine) as url:
        (part,) = whole(url, **asked)["output"][0]["content"]
        events = streamed(url, **asked)
        refused = create(url, input="x", top_logprobs=2)
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"] == "Hello world"
    assert [len(one["top_logprobs"]) for one in part["logprobs"]] == [2] * len(part["logprobs"])
    deltas = [one for event in events if event["type"].endswith(".delta") for one in event["logprobs"]]
    assert deltas == part["logprobs"]
    assert refused.json()["error"]["param"] == "top_logprobs"


def test_the_packages_own_stream_follows_a_call(client, engine):
    engine.script = says(CALL)
    with client.responses.stream(model="tiny", input="x", tools=[FUNCTION]) as stream:
        final = stream.get_final_response()
    assert json.loads(final.output[0].arguments) == {"city": "Paris é"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "odd"}]}, "input[0].type"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"role": "boss", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": "x", "tools": [{"type": "function", "name": "f g"}]}, "tools[0].name"),
        ({"input": "x", "tools": [TIME, TIME]}, "tools[1].name"),
        ({"input": "x", "tools": [{**SPACE, "tools": [SPACE]}]}, "tools[0].tools[0]"),
        ({"input": "x", "tools": [{**SPACE, "tools": [{**TIME, "parameters": {"type": "array"}}]}]},
         "tools[0].tools[0].parameters.type"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
        ({"input": "x", "max_output_tokens": 10_000}, "input"),
        ({"input": "x", "seed": "y"}, "seed"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
    ],
)  # fmt: skip
def test_refusals_name_the_field_of_the_request(url, fields, param):
    answer = create(url, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert "messages" not in answer.json()["error"]["message"]


def test_a_stream_that_fails_ends_with_an_error_and_the_failed_response(url, engine):
    def script(submit):
        first = MARKED.encode("Hello", add_special_tokens=False)[:1]
        failed = Output(submit.id, [], finish_reason="error", error_kind="overflow", error="It overflowed.")
        return [0.001, Output(submit.id, first), 0.001, failed]

    engine.script = script
    error, last = streamed(url, input="x")[-2:]
    assert (error["type"], error["code"], error["message"]) == ("error", "server_error", "It overflowed.")
    assert last["type"] == ENDS[2]
    assert last["response"]["error"] == {"code": "server_error", "message": "It overflowed."}


def test_the_last_turns_that_fit_are_answered_where_the_client_says_so(url, engine):
    said = [
        {"role": "system", "content": "Rules."},
        *(
            {"role": role, "content": f"n{number} " * 60}
            for number in range(40)
            for role in ("user", "assistant")
        ),
        {"role": "user", "content": "last"},
    ]
    refused = create(url, input=said, max_output_tokens=8)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    answer = whole(url, input=said, max_output_tokens=8, truncation="auto")
    kept = prompt_of(engine)
    assert kept.startswith("<|im_start|>system\nRules.")
    assert "<|im_start|>user\nlast" in kept
    turn = len(MARKED.encode(f"<|im_start|>user\n{'n1 ' * 60}<|im_end|>\n" * 2, add_special_tokens=False))
    assert ROOMY.max_model_len - 1.2 * turn < answer["usage"]["input_tokens"] + 8 <= ROOMY.max_model_len
    one = create(url, input="x " * 20_000, truncation="auto")
    assert one.json()["error"]["code"] == "context_length_exceeded"


def test_the_tokens_of_a_prompt_are_those_of_its_answer(client, engine):
    asked = {"model": "tiny", "input": "Hi", "instructions": "Be brief.", "tools": [FUNCTION]}
    counted = client.responses.input_tokens.count(**asked)
    assert counted.input_tokens == client.responses.create(**asked).usage.input_tokens
    assert len(engine.submitted) == 1


def test_what_was_recorded_is_replayed(url, engine, tmp_path):
    asked = {"input": "Hi", "stream": True, "store": False}
    with running(engine, text=MARKED.with_chat_template(QWEN), ready=ROOMY, record=tmp_path) as recording:
        first = create(recording, **asked)
    with replaying(tmp_path) as replayed:
        assert create(replayed, **asked).text == first.text
        missed = create(replayed, **{**asked, "input": "Ho"})
        assert missed.json()["error"]["code"] == "not_recorded"


def test_late_system_messages_move_where_a_template_takes_them_nowhere_else():
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}"
    )
    template = strict + "{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    said = [
        {"role": "user", "content": "a"},
        {"role": "developer", "content": "Late."},
        {"role": "user", "content": "b"},
    ]
    with serving(template, says("x")) as (client, engine):
        client.responses.create(model="tiny", input=said, instructions="Early.")
    assert prompt_of(engine) == "[system:Early.\n\nLate.][user:a\n\nb]"


def test_a_strict_server_refuses_what_has_no_effect():
    with serving(QWEN, says("x"), strict=True) as (client, _):
        for fields, param in (
            ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
            ({"input": [{"role": "user", "content": "x", "odd": 1}]}, "input[0].odd"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(**{"model": "tiny", "input": "x", **fields})
            assert caught.value.param == param
