"""POST /v1/messages: the anthropic package against the real server, whose engine is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from anthropic import types
from anthropic.types.message_create_params import MessageCreateParamsStreaming

from corepipe.serving.api.bodies.client_settings import IGNORED, SETTINGS_OF
from corepipe.serving.api.messages import blocks as blocks_module
from corepipe.serving.api.messages import body as body_module
from tests.serving.api.test_tools import BOTH, CALL, MARKED, OPENED, QWEN, ROOMY, THINKER, says
from tests.serving.http_support import FakeEngine, replaying, running, saying

PATH = "/v1/messages"
SAID = "Hello world. "


def tool(name: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"name": name, "description": "d", "input_schema": schema, **more}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


WEATHER, TIME = tool("weather"), {"name": "time"}
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 150, "messages": [{"role": "user", "content": "Hi"}]}
WITH_TOOLS = ASK | {"tools": [WEATHER, TIME]}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


class Asked:
    """A server with a scripted engine, and a client of it."""

    def __init__(self, url: str, engine: FakeEngine) -> None:
        self.url = url
        self.engine = engine
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def post(self, body: dict[str, Any], path: str = PATH, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers)

    def refused(self, body: dict[str, Any], path: str = PATH) -> str:
        """Returns the message of an error 400."""
        answer = self.post(body, path)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]["message"]

    def whole(self, **body: Any) -> anthropic.types.Message:
        return self.client.messages.create(**body)

    def streamed(self, **body: Any) -> tuple[list[Any], anthropic.types.Message]:
        """Returns the events of a stream as the package reads them, and the message that it makes of them."""
        events = list(self.client.messages.create(**body, stream=True))
        with self.client.messages.stream(**body) as stream:
            return events, stream.get_final_message()

    def prompt(self, **body: Any) -> str:
        """Returns the text of the prompt of a request; the counted tokens are those of its answer."""
        answer = self.post({**ASK, "max_tokens": 1, **body})
        assert answer.status_code == 200, answer.text
        counted = {name: value for name, value in ({**ASK, **body}).items() if name != "max_tokens"}
        count = self.post(counted, f"{PATH}/count_tokens").json()["input_tokens"]
        usage = answer.json()["usage"]
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        prompt = self.engine.submitted[-1].prompt
        assert count == len(prompt) == sum(usage[name] for name in names)
        return MARKED.decode(prompt, skip_special_tokens=False)


@contextmanager
def asked(template: str = QWEN, script: Any = None, **server: Any) -> Iterator[Asked]:
    engine = FakeEngine(script or saying(SAID), ROOMY)
    with running(engine, text=MARKED.with_chat_template(template), ready=ROOMY, **server) as url:
        yield Asked(url, engine)


@pytest.fixture(scope="module")
def shared() -> Iterator[Asked]:
    with asked() as one:
        yield one


@pytest.fixture
def at(shared: Asked) -> Asked:
    shared.engine.begin_anew()
    return shared


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def blocks(message: anthropic.types.Message) -> list[tuple[Any, ...]]:
    """Returns the blocks of a message, without the ids of calls, which are drawn by chance."""
    fields = {"text": ("text",), "thinking": ("thinking", "signature"), "tool_use": ("name", "input")}
    return [(one.type, *(getattr(one, name) for name in fields[one.type])) for one in message.content]


def same(at: Asked, **body: Any) -> anthropic.types.Message:
    """Checks that the events of a stream are in their order, and make the message that comes whole."""
    whole = at.whole(**body)
    events, made = at.streamed(**body)
    kinds = [one.type for one in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    within = [(one.type.removeprefix("content_block_"), one.index) for one in events[1:-2]]
    index = 0
    while within:
        assert within.pop(0) == ("start", index)
        while within[0] == ("delta", index):
            within.pop(0)
        assert within.pop(0) == ("stop", index)
        index += 1
    assert index == len(whole.content)
    assert blocks(made) == blocks(whole)
    assert (made.stop_reason, made.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert made.usage.output_tokens == whole.usage.output_tokens
    assert events[0].message.usage.input_tokens == whole.usage.input_tokens == made.usage.input_tokens
    return whole


def test_an_answer(at: Asked) -> None:
    answer = same(at, **ASK | {"max_tokens": 4})
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert answer.id.startswith("msg_")
    assert answer._request_id is not None
    assert blocks(answer) == [("text", "Hello")]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 4)


def test_the_bytes_of_a_stream_begin_with_its_message_and_a_ping(at: Asked) -> None:
    lines = at.post(ASK | {"stream": True, "max_tokens": 2}).text.split("\n")
    assert lines[0] == "event: message_start"
    assert lines[3:5] == ["event: ping", 'data: {"type":"ping"}']


def test_why_it_ends(at: Asked) -> None:
    assert same(at, **ASK, stop_sequences=["wor", "zzz"]).stop_sequence == "wor"
    at.engine.script = saying(SAID, ends="stop")
    assert same(at, **ASK).stop_reason == "end_turn"
    at.engine.script = says(CALL)
    assert same(at, **WITH_TOOLS).stop_reason == "tool_use"
    assert same(at, **WITH_TOOLS, tool_choice={"type": "tool", "name": "weather"}).stop_reason == "tool_use"
    at.engine.script = says(CALL, ends="length")
    cut = same(at, **WITH_TOOLS | {"max_tokens": len(MARKED.encode(CALL, add_special_tokens=False))})
    assert cut.stop_reason == "max_tokens"


def test_an_answer_ends_where_the_context_does(at: Asked) -> None:
    """Agents ask for more tokens than a small model has room for."""
    answer = same(at, **ASK | {"max_tokens": 8192}, extra_body={"seed": 1})
    room = ROOMY.max_model_len - answer.usage.input_tokens - (answer.usage.cache_read_input_tokens or 0)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("model_context_window_exceeded", room)
    long = at.refused(ASK | {"messages": [{"role": "user", "content": "word " * 5000}]})
    assert long.startswith("prompt is too long: "), "agents look for these words"


def test_calls(at: Asked) -> None:
    at.engine.script = says(BOTH)
    answer = same(at, **WITH_TOOLS)
    assert blocks(answer) == [
        ("text", "Let me see."),
        ("tool_use", "weather", {"city": "Paris é"}),
        ("tool_use", "time", {}),
    ]
    assert len({one.id for one in answer.content if one.type == "tool_use"}) == 2


@pytest.mark.parametrize("end", range(1, len(CALL), 3))
def test_a_call_that_is_cut_is_what_the_package_makes_of_it(at: Asked, end: int) -> None:
    at.engine.script = says(CALL[:end], ends="length")
    same(at, **WITH_TOOLS)


def test_reasoning() -> None:
    with asked(OPENED, says("hm\nhm</think>\n\nYes. " + CALL)) as at:
        answer = same(at, **WITH_TOOLS)
        assert [one[:2] for one in blocks(answer)] == [
            ("thinking", "hm\nhm"),
            ("text", "Yes."),
            ("tool_use", "weather"),
        ]
        assert answer.content[0].signature
        omitted = same(at, **WITH_TOOLS, thinking={"type": "adaptive", "display": "omitted"})
        assert [one[1] for one in blocks(omitted)] == ["", "Yes.", "weather"]
        at.engine.script = says("no end of it", ends="length")
        assert blocks(same(at, **ASK))[0][:2] == ("thinking", "no end of it")


def test_a_template_hears_whether_to_reason() -> None:
    off = "<think>\n\n</think>\n\n"
    with asked(THINKER) as at:
        assert at.prompt(thinking={"type": "disabled"}).endswith(off)
        for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
            assert off not in at.prompt(thinking=thinking)
        for name, value in (("budget_tokens", 1024), ("display", "updates")):
            told = at.post(ASK | {"thinking": {"type": "enabled", name: value}})
            assert told.headers[IGNORED] == f"thinking.{name}"


def test_usage_of_the_prefix_cache(at: Asked) -> None:
    """The scripted engine reports two tokens of the cache; blocks have 32."""
    plain = at.whole(**ASK).usage
    prompt = len(at.engine.submitted[0].prompt)
    assert (plain.cache_read_input_tokens, plain.cache_creation_input_tokens) == (2, 0)
    assert plain.input_tokens == prompt - 2
    long = text("Be brief. " * 20)
    for more in ({"system": [long | MARK]}, {"system": [long], **MARK}):
        usage = at.post(ASK | more).json()["usage"]
        whole = len(at.engine.submitted[-1].prompt)
        assert usage["cache_creation_input_tokens"] == whole // 32 * 32 - 2 > 0
        assert usage["input_tokens"] == whole % 32


def test_messages_become_those_of_a_chat(at: Asked) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}, **MARK}
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    prompt = at.prompt(
        system=[text("Be brief."), text("Be kind.", **MARK)],
        messages=[
            {
                "role": "user",
                "content": [text("Look."), text("Now.")],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I call.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    text("Well.", citations=None),
                    call | {"caller": {"type": "direct"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    result | {"content": [text("sunny"), text("warm")]},
                    result | {"content": "broken", "is_error": True},
                    result,
                    text("And?"),
                ],
            },
            {"role": "system", "content": [text("Be quick.")]},
        ],
    )
    assert prompt == (
        turn("system", "Be brief.\n\nBe kind.")
        + turn("user", "Look.\nNow.")
        + turn("assistant", '<think>I call.</think>Well.<tool_call>weather {"city": "Rome"}</tool_call>')
        + turn("tool", "sunny\nwarm(toolu_1)")
        + turn("tool", "Error: broken(toolu_1)")
        + turn("tool", "(toolu_1)")
        + turn("user", "And?")
        + turn("system", "Be quick.")
        + "<|im_start|>assistant"
    )


def test_documents_and_search_results_are_text(at: Asked) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Once."}
    parts = {"type": "content", "content": [text("A"), text("B")]}
    found = {
        "type": "search_result",
        "source": "x.md",
        "title": "X",
        "content": [text("Y")],
    }
    content = [
        {"type": "document", "source": source, "title": "A tale", "citations": {"enabled": True}},
        {"type": "document", "source": parts, "context": "Letters."},
        found,
        {
            "type": "tool_result",
            "tool_use_id": "1",
            "content": [{"type": "tool_reference", "tool_name": "t"}],
        },
    ]
    prompt = at.prompt(messages=[{"role": "user", "content": content}])
    assert turn("user", "A tale\n\nOnce.\nLetters.\n\nA\n\nB\nX\nx.md\nY") + turn("tool", "t(1)") in prompt
    answer = at.post(ASK | {"messages": [{"role": "user", "content": content}]})
    assert answer.headers[IGNORED] == "messages[0].content[0].citations"


def test_a_last_message_of_the_assistant_is_continued(at: Asked) -> None:
    begun = [*ASK["messages"], {"role": "assistant", "content": "It is"}]
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant] {% endif %}"
    with asked(template) as one:
        assert one.prompt(messages=begun) == "[user] Hi[assistant] It is"
        empty = [*ASK["messages"], {"role": "assistant", "content": []}]
        assert one.prompt(messages=empty) == one.prompt() == "[user] Hi[assistant] "
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    assert "results" in at.refused(
        ASK | {"messages": [*ASK["messages"], {"role": "assistant", "content": [call]}]}
    )


def test_what_claude_code_changes_at_each_turn_is_left_out(at: Asked) -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli; cch={};"
    prompts = set()
    for number in range(2):
        billed = text(line.format(number, number))
        system = [billed, text("You are Claude Code.")]
        prompts.add(at.prompt(system=system))
        assert at.post(ASK | {"system": system}).headers[IGNORED] == "system[0]"
        prompts.add(at.prompt(system=f"{billed['text']}\nYou are Claude Code."))
    assert len(prompts) == 1
    assert prompts.pop().startswith(turn("system", "You are Claude Code."))


def test_an_answer_comes_back_as_history(at: Asked) -> None:
    at.engine.script = says(BOTH)
    for answer in (at.whole(**WITH_TOOLS), at.streamed(**WITH_TOOLS)[1]):
        results = [
            {"type": "tool_result", "tool_use_id": one.id, "content": "ok"}
            for one in answer.content
            if one.type == "tool_use"
        ]
        turns = [*ASK["messages"], answer.to_param(), {"role": "user", "content": results}]
        assert at.client.messages.create(**WITH_TOOLS | {"messages": turns}).content
        whole = [one.model_dump() for one in answer.content]
        again = [
            *ASK["messages"],
            {"role": "assistant", "content": whole},
            {"role": "user", "content": results},
        ]
        assert at.post(WITH_TOOLS | {"messages": again}).status_code == 200


def test_a_schema_becomes_a_grammar(at: Asked) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": schema}
    for more in ({"output_config": {"format": form}}, {"output_format": form}):
        assert at.post(ASK | more).status_code == 200
        assert "integer" in at.engine.submitted[-1].grammar
    wrong = {"format": form | {"schema": {"not": {}}}}
    assert "output_config.format" in at.refused(ASK | {"output_config": wrong})
    two = {"output_config": {"format": form}, "output_format": form | {"schema": {}}}
    assert "output_format" in at.refused(ASK | two)


@pytest.mark.parametrize(
    ("choice", "forced", "single"),
    [
        ({"type": "auto"}, False, False),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, True),
        ({"type": "any"}, True, False),
        ({"type": "any", "disable_parallel_tool_use": True}, True, True),
        ({"type": "tool", "name": "weather"}, True, True),
    ],
)
def test_choices_of_tools(at: Asked, choice: dict[str, Any], forced: bool, single: bool) -> None:
    at.engine.script = says(BOTH)
    answer = at.whole(**WITH_TOOLS, tool_choice=choice)
    assert bool(at.engine.submitted[-1].grammar) is forced
    assert sum(one.type == "tool_use" for one in answer.content) == (1 if single else 2)
    none = at.whole(**WITH_TOOLS, tool_choice={"type": "none"})
    assert all(one.type == "text" for one in none.content)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "owner", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0].type"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"temperature": 3}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name"),
        (
            {"tools": [WEATHER, {"name": "b", "input_schema": {"type": "array"}}]},
            "tools[1].input_schema.type",
        ),
        ({"tools": [WEATHER | {"colour": 1}]}, "tools[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"colour": 1}, "colour"),
        ({"cache_control": {"type": "forever"}}, "cache_control.type"),
    ],
)
def test_an_error_names_its_field(at: Asked, more: dict[str, Any], named: str) -> None:
    assert named in at.refused(ASK | more)


def test_the_sdk_does_without_a_thread_where_it_is_refused(at: Asked) -> None:
    error = at.post(ASK | {"thread": {"type": "create"}}).json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


@pytest.mark.parametrize("kind", ["image", "document"])
@pytest.mark.parametrize(
    "source", [{"type": "base64", "media_type": "x", "data": ""}, {"type": "url", "url": "x"}]
)
def test_what_is_no_text_is_refused_by_name(at: Asked, kind: str, source: dict[str, Any]) -> None:
    block = {"type": kind, "source": source}
    inner = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
    for content, where in (([block], "content[0]"), ([inner], "content[0].content[0]")):
        told = at.refused(ASK | {"messages": [{"role": "user", "content": content}]})
        assert told.startswith(f"messages[0].{where}: ")


def test_hosted_tools_are_left_out_where_the_server_may() -> None:
    hosted = {"type": "web_search_20260318", "name": "web_search"}
    with asked(drop_hosted_tools=True) as at:
        answer = at.post(ASK | {"tools": [hosted, WEATHER, hosted]})
        assert answer.headers[IGNORED] == "tools[0], tools[2]"
        assert "web_search" not in at.prompt(tools=[hosted, WEATHER])
        assert at.prompt(tools=[hosted]) == at.prompt()
        wrong = at.refused(ASK | {"tools": [hosted, {"name": "a", "input_schema": {"type": "array"}}]})
        assert wrong.startswith("tools[1].input_schema")


def test_models_have_the_form_of_the_client_that_asks(tmp_path: Path) -> None:
    names = ["a", "b/c", "d"]
    with asked(served_model_names=names, record=tmp_path) as at:
        page = at.client.models.list()
        assert [one.id for one in page.data] == names
        assert (page.has_more, page.first_id, page.last_id) == (False, "a", "d")
        assert [one.id for one in at.client.models.list(limit=2)] == names, "it turns the pages"
        assert [one.id for one in at.client.models.list(before_id="d", limit=1).data] == ["b/c"]
        known = at.client.models.retrieve("b/c")
        assert (known.type, known.lifecycle, known.max_input_tokens) == (
            "model",
            "active",
            ROOMY.max_model_len,
        )
        assert known.created_at.year >= 2026
        for query in ("limit=0", "limit=x", "after_id=x"):
            wrong = httpx.get(f"{at.url}/v1/models?{query}", headers={"anthropic-version": "2023-06-01"})
            assert wrong.status_code == 400
        assert httpx.get(f"{at.url}/v1/models").json()["object"] == "list"
    with replaying(tmp_path, served_model_names=names) as url:
        again = anthropic.Anthropic(base_url=url, api_key="none").models.list()
        assert [one.id for one in again.data] == names


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (types.TextBlockParam, blocks_module.TextBlock),
        (types.ImageBlockParam, blocks_module.ImageBlock),
        (types.DocumentBlockParam, blocks_module.DocumentBlock),
        (types.SearchResultBlockParam, blocks_module.SearchResultBlock),
        (types.ThinkingBlockParam, blocks_module.ThinkingBlock),
        (types.RedactedThinkingBlockParam, blocks_module.RedactedThinkingBlock),
        (types.ToolUseBlockParam, blocks_module.ToolUseBlock),
        (types.ToolResultBlockParam, blocks_module.ToolResultBlock),
        (types.ToolReferenceBlockParam, blocks_module.ToolReferenceBlock),
        (types.CacheControlEphemeralParam, blocks_module.CacheControl),
        (types.ToolParam, body_module.CustomTool),
        (types.ThinkingConfigEnabledParam, body_module.Thinking),
        (types.ThinkingConfigAdaptiveParam, body_module.Thinking),
        (types.OutputConfigParam, body_module.OutputConfig),
        (types.ToolChoiceToolParam, body_module.NamedTool),
        (MessageCreateParamsStreaming, body_module.MessagesRequest),
        (types.MessageCountTokensParams, body_module.CountTokensRequest),
    ],
)
def test_every_field_of_the_package_is_known(theirs: Any, ours: type[msgspec.Struct]) -> None:
    settings = SETTINGS_OF.get(ours.__name__, {})
    known = {"type", *ours.__struct_fields__, *getattr(ours, "neutral", ()), *settings}
    assert theirs.__annotations__.keys() <= known


def test_the_package_raises_its_own_errors(at: Asked) -> None:
    with pytest.raises(anthropic.NotFoundError):
        at.whole(**ASK | {"model": "other"})
    with pytest.raises(anthropic.BadRequestError):
        at.whole(**ASK | {"max_tokens": 0})
    with running(FakeEngine(), api_keys=["k"]) as url:
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=url, api_key="wrong").messages.create(**ASK)
        keyed = anthropic.Anthropic(base_url=url, api_key="k").messages.create(**ASK)
        tokened = anthropic.Anthropic(base_url=url, auth_token="k").messages.create(**ASK)
        assert keyed.content == tokened.content


def test_a_stream_that_fails_ends_with_an_error_of_this_api(at: Asked) -> None:
    def failing(submit: Any) -> list[Any]:
        first, second = says("Hello")(submit)[1::2][:2]
        return [first, 0.001, type(second)(second.id, [], finish_reason="error", error_kind="expired")]

    at.engine.script = failing
    with pytest.raises(anthropic.APIStatusError) as raised:
        list(at.client.messages.create(**ASK, stream=True))
    assert raised.value.body["error"]["type"] == "timeout_error"


def test_a_strict_server_refuses_what_has_no_effect() -> None:
    with asked(strict=True) as at:
        assert at.post(ASK).status_code == 200
        assert "thinking" in at.refused(ASK | {"thinking": {"type": "enabled", "budget_tokens": 1024}})
        billed = ASK | {"system": "x-anthropic-billing-header: a"}
        assert "system" in at.refused(billed)
        counted = {name: value for name, value in billed.items() if name != "max_tokens"}
        assert "system" in at.refused(counted, f"{PATH}/count_tokens")
