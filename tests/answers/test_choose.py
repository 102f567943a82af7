"""The choice of a model's formats: by flags, its response_template (as in transformers) or template."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS
from transformers.utils.chat_parsing import parse_response

from corepipe.answers.parsing.choose import choose
from corepipe.answers.parsing.formats import FORMATS, AnswerFormat, Body
from corepipe.answers.parsing.response_template import UnreadableError, from_response_template
from corepipe.errors import UserError
from tests.answers.cases import CALLS, ONE, read


@dataclass
class Speaker:
    chat_template: str | None = None
    response_template: dict[str, Any] | None = None
    added_tokens: dict[str, int] = field(default_factory=dict)


QWEN3 = (
    "{% if tools %}<tools></tools>{% endif %}<tool_call></tool_call>{% if x %}<think>\n\n</think>{% endif %}"
)
TEMPLATES = {
    "{{ messages }}": ("hermes", None, False),
    "named SmolLM, trained by Hugging Face": ("smollm2", None, False),
    QWEN3: ("hermes", "qwen3", True),
    "{% for t in tools %}{% endfor %}<tool_call>\n<function=a>\n<parameter=b>": ("qwen3_coder", None, True),
    "{% if xml_tools %}<tool_call>{% endif %}</think>": ("smollm3", "qwen3", True),
    "{% if tools %}[TOOL_CALLS]{% endif %}": ("mistral", None, True),
    "{% if tools %}[TOOL_CALLS]f[ARGS]{% endif %}[THINK][/THINK]": ("mistral_v11", "mistral", True),
    "{% if tools %}<|python_tag|>{% endif %}": ("llama3_json", None, True),
    '{% if tools %}"parameters": dictionary of argument name and its value{% endif %}': (
        "llama3_json",
        None,
        True,
    ),
    "{% if tools %}<|python_start|>{% endif %}": ("llama4_pythonic", None, True),
    "{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}": ("pythonic", None, True),
    "{% if tools %}something new{% endif %}": (None, None, True),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_markers_in_the_chat_template(template):
    found = choose(Speaker(template))
    calls, reasoning, told = TEMPLATES[template]
    assert (found.calls and found.calls.name, found.reasoning and found.reasoning.name) == (calls, reasoning)
    assert found.presents_tools is told
    assert found.extra == (("xml_tools",) if "xml_tools" in template else ())
    assert (
        found.summary()
        == f"tool calls as {calls or 'none'}, reasoning as {reasoning or 'none'} (by its chat template)"
    )


def test_flags_go_first():
    found = choose(Speaker(QWEN3), "mistral", "none")
    assert (found.calls, found.reasoning, found.source) == (FORMATS["mistral"], None, "by flag")
    half = choose(Speaker(QWEN3), "none")
    assert (half.calls, half.reasoning.name) == (None, "qwen3")
    assert half.source == "by flag, else by its chat template"
    assert choose(Speaker(None)).summary() == "tool calls as none, reasoning as none (no chat template)"
    for flags, name in ((("qwen",), "tool_call_parser"), (("auto", "o1"), "reasoning_parser")):
        with pytest.raises(UserError, match="there are auto, none, ") as caught:
            choose(Speaker(QWEN3), *flags)
        assert caught.value.param == name


TOOLS = {"f": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}}}, "g": {}}
OFFERED = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in TOOLS.items()]
QWEN_TEXTS = [
    f"<think>\nhm\n</think>\n\nSure.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{ONE}\n</tool_call>",
    f"<tool_call>\n{ONE}\n</tool_call>",
    "<think>\nhm\n</think>\n\nNo call.",
    "Plain.",
]
CODER_TEXTS = [
    "<think>hm</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n"
    "<parameter=s>\nx y\n</parameter>\n</function>\n</tool_call>",
    "Now.\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
]


def theirs(template, text):
    """Reads an answer as transformers does, with arguments as objects."""
    said = parse_response(text, template, prefix="", tools=OFFERED)
    calls = [one["function"] for one in said.get("tool_calls", [])]
    return (
        said.get("content", "").strip(),
        said.get("reasoning_content", ""),
        [(c["name"], c["arguments"]) for c in calls],
    )


def ours(template, text):
    calls, reasoning = from_response_template(template)
    said = read(AnswerFormat(calls, reasoning, TOOLS), text)
    return said.text, said.reasoning, [(name, json.loads(arguments)) for name, arguments in said.calls]


@pytest.mark.parametrize(("model", "texts"), [("qwen3", QWEN_TEXTS), ("qwen3_5", CODER_TEXTS)])
def test_response_templates_mean_what_transformers_makes_of_them(model, texts):
    template = next(spec for types, spec in _RESPONSE_TEMPLATE_FALLBACKS.items() if model in types)
    for text in texts:
        assert ours(template, text) == theirs(template, text)
    found = choose(Speaker("{{ tools }}", template))
    assert found.source == "by its response_template"
    assert (found.calls.name, found.reasoning.name) == ("response_template", "response_template")


def fields(**calls):
    return {"start_anchor": "x", "fields": {"tool_calls": calls}}


CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def test_other_shapes_of_response_templates():
    named = fields(
        open_pattern=r"\[TOOL_CALLS\](?P<name>\w+)\[ARGS\]", repeats=True, content="json", transform=CALL
    )
    text = '[TOOL_CALLS]f[ARGS]{"a": 1}'
    assert ours(named, text) == theirs(named | {"fields": {**named["fields"], "content": {}}}, text)
    keys = fields(open="<call>", close="</call>", content="json", transform={
        "function": {"name": "{content.tool}", "arguments": "{content.with}"}})  # fmt: skip
    assert ours(keys, '<call>{"tool": "f", "with": {"a": 1}}</call>')[2] == [("f", {"a": 1})]
    each = fields(open="[T]", content="json", transform_each=True, transform={
        "function": {"name": "{name}", "arguments": "{arguments}"}})  # fmt: skip
    assert ours(each, f"[T][{ONE}, {ONE}]")[2] == [("f", {"a": 1})] * 2
    assert from_response_template(each)[0].listed


GEMMA4 = next(spec for types, spec in _RESPONSE_TEMPLATE_FALLBACKS.items() if "gemma4" in types)


@pytest.mark.parametrize(
    "template",
    [
        GEMMA4,
        {},
        {"version": 2, "fields": {}},
        {"fields": {"tool_calls": 5}},
        {"fields": {"reasoning_content": {"open": "<think>"}}},
        fields(open_pattern="(a+)+b", content="json"),
        fields(open_pattern="a|b", content="json"),
        fields(open=["a", "b"], content="json"),
        fields(open="a", content="kv-lines"),
        fields(open="a", content="json", transform="{content}{x}"),
        fields(open_pattern="(?P<name>a)(?P<other>b)", content="json", transform=CALL),
    ],
)
def test_what_formats_cannot_say_is_told_and_the_markers_count(template):
    with pytest.raises(UnreadableError):
        from_response_template(template)
    found = choose(Speaker(QWEN3, template))
    assert found.calls == FORMATS["hermes"]
    assert "its response_template is not used: " in found.summary()


def test_the_cases_have_all_bodies():
    assert {FORMATS[name].body for name, *_ in CALLS} == set(Body)
