"""Forced calls: every text that a grammar allows is read as calls whose arguments fit their schemas.

Texts are drawn token by token from the tokens that llguidance allows.
"""

from __future__ import annotations

import json

import jsonschema
import pytest
from llguidance import LLMatcher

from corepipe.answers.parsing.choose import Dialect
from corepipe.answers.parsing.forcing import answer_grammar, writes_calls
from corepipe.answers.parsing.formats import FORMATS, REASONING
from corepipe.answers.parsing.prompt import reading_of
from corepipe.answers.parsing.tools import offered_by
from corepipe.errors import UserError
from corepipe.library.prompts import ChatTools
from tests.answers.cases import read
from tests.constrained.walk import vocabulary, walk
from tests.serving.api.test_tools import MARKED
from tests.serving.http_support import tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "unit": {"enum": ["C", "F"]},
        "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "where": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2},
    },
    "required": ["city", "points"],
    "$defs": {
        "point": {
            "type": "object",
            "properties": {
                "x": {"type": "number", "minimum": 0, "maximum": 9},
                "name": {"type": "string", "maxLength": 4},
            },
            "required": ["x"],
        }
    },
}
SCHEMAS = {"weather": SCHEMA, "time.now": {"type": "object", "properties": {}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": one, "strict": True}}
    for name, one in SCHEMAS.items()
]
MOST = 1500
"""Tokens of a drawn answer: the vocabulary has hardly more than bytes."""


def takes(grammar, which, text):
    """Tells whether the grammar accepts a text as an answer."""
    matcher = LLMatcher(vocabulary(which), grammar)
    tokens = which.encode(text, add_special_tokens=False)
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    return matcher.consume_tokens(tokens) and matcher.is_accepting()


def offer_of(**choice):
    return offered_by(TOOLS, choice.get("choice", "required"), parallel=choice.get("parallel", True))


def asked(name, which, offer, *, tail="", reasoning=None):
    """Returns (format, grammar) of a request to a model with this format."""
    reading = reading_of(Dialect(FORMATS[name], REASONING[reasoning] if reasoning else None), offer, tail)
    return reading, grammar_of(reading, offer, which)


def grammar_of(reading, offer, which, wanted=""):
    tokens = which.added_tokens
    narrowed = ChatTools(offer).narrowed if writes_calls(reading, offer, tokens, wanted) else {}
    return answer_grammar(reading, offer, tokens, wanted, narrowed)


def check(answer, most=99, least=1):
    assert least <= len(answer.calls) <= most
    for name, arguments in answer.calls:
        value = json.loads(arguments)
        jsonschema.validate(value, SCHEMAS[name])
        assert value.keys() <= SCHEMAS[name]["properties"].keys()


@pytest.mark.parametrize("which", [tokenizer(), MARKED], ids=["text", "tokens"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_forced_is_read_as_calls_that_fit_their_schemas(name, which):
    ended = 0
    for parallel in (True, False):
        reading, grammar = asked(name, which, offer_of(parallel=parallel))
        for seed in range(3):
            text, whole = walk(grammar, which, seed, MOST)
            if whole:
                ended += 1
                answer = read(reading, text)
                assert (answer.text, answer.finish) == ("", "tool_calls"), text
                check(answer, 99 if parallel else 1)
    assert ended >= 4


@pytest.mark.parametrize("name", ["hermes", "mistral_v11", "pythonic", "qwen3_coder"])
def test_a_named_tool_is_called_once(name):
    offer = offer_of(choice={"type": "function", "function": {"name": "time.now"}})
    reading, grammar = asked(name, MARKED, offer)
    answer = read(reading, walk(grammar, MARKED, 1, MOST)[0])
    assert answer.calls == (("time.now", "{}"),)
    assert answer.finish == "stop"


@pytest.mark.parametrize("which", [tokenizer(), MARKED], ids=["text", "tokens"])
@pytest.mark.parametrize("tail", ["<think>\n", "", "<think>\n\n</think>\n\n"])
def test_thinking_before_a_forced_call(which, tail):
    offer = offer_of(choice={"type": "function", "function": {"name": "time.now"}})
    reading, grammar = asked("hermes", which, offer, tail=tail, reasoning="qwen3")
    call = '<tool_call>\n{"name": "time.now", "arguments": {}}\n</tool_call>'
    opening = "" if tail.startswith("<think>") else "<think>"
    thought = f"{opening}hm {{}}\n</think>\n\n{call}"
    allowed = {thought: "</think>" not in tail, call: not reading.thinking, f"hm {call}": False}
    for text, right in allowed.items():
        assert takes(grammar, which, text) == right, text
        if right:
            assert read(reading, text).calls == (("time.now", "{}"),)


def test_thinking_before_a_constrained_answer():
    reading = reading_of(Dialect(FORMATS["hermes"], REASONING["qwen3"]), None, "<think>\n")
    schema = LLMatcher.grammar_from_json_schema('{"type": "integer"}')
    for grammar in (schema, LLMatcher.grammar_from_lark("start: /[0-9]+/"), "start: /[0-9]+/"):
        for which in (tokenizer(), MARKED):
            whole = answer_grammar(reading, None, which.added_tokens, grammar)
            assert not LLMatcher.validate_grammar(whole, vocabulary(which))
            assert takes(whole, which, "hm 12x\n</think>\n\n12")
            assert not takes(whole, which, "hm</think>\n\nx")
            assert not takes(whole, which, "12")
    closed_one = reading_of(Dialect(None, REASONING["qwen3"]), None, "</think>")
    assert answer_grammar(closed_one, None, {}, "start: /[0-9]+/") == "start: /[0-9]+/"


def test_a_constrained_answer_or_a_call():
    name = "hermes"
    offer = offer_of(choice="auto")
    reading = reading_of(Dialect(FORMATS[name]), offer, "")
    wanted = LLMatcher.grammar_from_json_schema('{"enum": [{"ok": true}]}')
    grammar = grammar_of(reading, offer, MARKED, wanted)
    call = '{"name": "time.now", "%s": {}}'
    call = f"<tool_call>\n{call % 'arguments'}\n</tool_call>"
    assert takes(grammar, MARKED, '{"ok": true}')
    assert takes(grammar, MARKED, call)
    assert not takes(grammar, MARKED, "text")
    assert read(reading, '{"ok": true}').calls == ()
    assert read(reading, call).calls == (("time.now", "{}"),)


def test_a_constrained_answer_or_a_call_that_begins_alike_is_refused():
    offer = offer_of(choice="auto")
    reading = reading_of(Dialect(FORMATS["llama3_json"]), offer, "")
    with pytest.raises(UserError, match="beside tools"):
        grammar_of(reading, offer, MARKED, "start: /x/")


CALLS = {
    "hermes": '<tool_call>\n{"name": "time.now", "arguments": {}}\n</tool_call>',
    "smollm2": '<tool_call>[{"name": "time.now", "arguments": {}}]</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "time.now", "arguments": {}}]',
    "mistral_v11": "[TOOL_CALLS]time.now[ARGS]{}",
    "qwen3_coder": "<tool_call>\n<function=time.now>\n</function>\n</tool_call>",
    "smollm3_python": "<code>time.now()</code>",
}


@pytest.mark.parametrize("which", [tokenizer(), MARKED], ids=["text", "tokens"])
@pytest.mark.parametrize(("name", "good"), CALLS.items())
def test_strict_tools_are_held_to_their_schemas_where_the_model_chooses_to_call(name, good, which):
    """The opening may be a token, or characters that a model writes one by one."""
    reading, grammar = asked(name, which, offer_of(choice="auto"))
    for text, right in (
        ("Just text, a < b, [TOOL_ <tool_", True),
        ("", True),
        (f"Text {good}", True),
        (f"{good}\n{good}", True),
        (f"{good} and {good}, so.", True),
        (good.replace("time.now", "other"), False),
        (good.replace("{}", '{"x": 1}'), "{}" not in good),
        (f"{good} {good.replace('time.now', 'other')}", False),
    ):
        assert takes(grammar, which, text) == right, text
    assert read(reading, f"Text {good}").calls == (("time.now", "{}"),)
    _, single = asked(name, which, offer_of(choice="auto", parallel=False))
    assert takes(single, which, good)
    assert not takes(single, which, f"{good}\n{good}")


@pytest.mark.parametrize("which", [tokenizer(), MARKED], ids=["text", "tokens"])
@pytest.mark.parametrize("tail", ["<think>\n", ""])
def test_strict_tools_leave_the_reasoning_free(tail, which):
    _, grammar = asked("hermes", which, offer_of(choice="auto"), tail=tail, reasoning="qwen3")
    opening = "" if tail else "<think>"
    if which is not MARKED and not tail:
        assert grammar == "", "what is thought and what is said begin alike"
        return
    assert takes(grammar, which, "Text") == (not tail)
    for text in ("Text", CALLS["hermes"]):
        assert takes(grammar, which, f"{opening}hm a tool?</think>\n\n{text}"), text
    assert not takes(grammar, which, f"{opening}hm</think>\n\n<tool_call>x")


@pytest.mark.parametrize("name", ["llama3_json", "pythonic"])
def test_where_calls_need_no_opening_strict_is_without_effect(name):
    assert asked(name, MARKED, offer_of(choice="auto"))[1] == ""


def test_nothing_is_forced_where_nothing_is_asked():
    loose = [{"type": "function", "function": {"name": "f"}}]
    for offer in (offered_by(loose), offered_by(TOOLS, "none")):
        reading = reading_of(Dialect(FORMATS["hermes"], REASONING["qwen3"]), offer, "")
        assert grammar_of(reading, offer, MARKED) == ""


def of_one(name, schema, *texts):
    """Returns a check whether texts are accepted where a tool with this schema must be called."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    _, grammar = asked(name, MARKED, offered_by(tools, "required", parallel=False))
    return [takes(grammar, MARKED, text) for text in texts]


def hermes(arguments):
    return f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'


def test_arguments_are_held_to_what_answers_are():
    """A constant distinguishes members of a union; other keys and values that are no object are refused."""
    pets = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"
    ]
    schema = {"properties": {"pet": {"oneOf": pets}, "n": {"type": "integer"}}, "required": ["pet"]}
    good = ['{"pet": {"kind": "a"}}', '{"pet": {"kind": "b"}, "n": 5}']
    bad = [
        '{"pet": {"kind": "c"}}',
        '{"pet": {"kind": "a"}, "x": 1}',
        "5",
        '{"pet": {"kind": "a"}, "n": ' + "9" * 20 + "}",
    ]
    assert of_one("hermes", schema, *map(hermes, good)) == [True, True]
    assert of_one("hermes", schema, *map(hermes, bad)) == [False] * 4
    open_one = {"properties": {}, "additionalProperties": True}
    assert of_one("hermes", open_one, hermes('{"x": 1}')) == [True]


def test_a_schema_may_be_true():
    """It may be that of a parameter or of a member of a union; one that is false allows no value."""
    either = {"anyOf": [{"type": "string"}, True]}
    schema = {"type": "object", "properties": {"a": True, "b": either, "c": False}}
    calls = ["[f(a=[1], b=5)]", "[f(b='x')]".replace("'", '"'), "[f()]", "[f(c=1)]"]
    assert of_one("pythonic", schema, *calls) == [True, True, True, False]
    assert of_one("qwen3_coder", schema, *(tagged(name, "1") for name in "abc")) == [True, True, False]


def tagged(name, value):
    return f"<tool_call>\n<function=f>\n<parameter={name}>\n{value}\n</parameter>\n</function>\n</tool_call>"


PARIS = '{"name": "f", "arguments": {"a": "Paris é"}}'
NATURAL = {
    "hermes": f"<tool_call>\n{PARIS}\n</tool_call>",
    "qwen3_coder": tagged("a", "Paris é"),
    "llama3_json": PARIS.replace("arguments", "parameters"),
    "pythonic": '[f(a="Paris é")]',
    "llama4_pythonic": '[f(a="Paris é")]',
    "mistral": f"[TOOL_CALLS][{PARIS}]",
    "mistral_v11": '[TOOL_CALLS]f[ARGS]{"a": "Paris é"}',
    "smollm2": f"<tool_call>[{PARIS}]</tool_call>",
    "smollm3": f"<tool_call>\n{PARIS}\n</tool_call>",
    "smollm3_python": '<code>f(a="Paris é")</code>',
}


@pytest.mark.parametrize("name", NATURAL)
@pytest.mark.parametrize("text", [{}, {"maxLength": 40}, {"minLength": 3}, {"enum": ["Paris é"]}], ids=str)
def test_what_models_write_may_be_written_where_calls_are_forced(name, text):
    schema = {"type": "object", "properties": {"a": {"type": "string", **text}}, "required": ["a"]}
    assert of_one(name, schema, NATURAL[name]) == [True]


def test_a_text_in_a_tag_may_be_anything_but_its_end():
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    texts = ["", "\n", "a\n\nb", "if a < b: </a>", "<parameter=b>", "é\n</para"]
    assert of_one("qwen3_coder", schema, *(tagged("a", text) for text in texts)) == [True] * len(texts)
    assert of_one("qwen3_coder", schema, tagged("a", "x</parameter>y")) == [False]


@pytest.mark.parametrize(
    ("name", "schema", "path"),
    [
        ("pythonic", {"anyOf": [{}]}, "tools[0].function.parameters"),
        ("pythonic", {"properties": {"a-b": {}}}, "tools[0].function.parameters.properties.a-b"),
        ("qwen3_coder", {"properties": {"a b": {}}}, "tools[0].function.parameters.properties.a b"),
        (
            "qwen3_coder",
            {"properties": {"a": {"type": "string", "pattern": "a+"}}},
            "tools[0].function.parameters.properties.a",
        ),
        (
            "qwen3_coder",
            {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]}}},
            "tools[0].function.parameters.properties.a",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_forced_is_refused_by_its_path(name, schema, path):
    offer = offered_by([{"type": "function", "function": {"name": "f", "parameters": schema}}], "required")
    with pytest.raises(UserError) as caught:
        asked(name, MARKED, offer)
    assert caught.value.param == path


WORDS = {"$defs": {"word": {"enum": ["red", "light blue"], "type": "string"}}, "type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/word"},
        {"$ref": "#/$defs/word", "title": "Word"},
        {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]},
    ],
)
def test_texts_in_tags_are_what_their_schemas_refer_to(schema):
    """Pydantic writes an enum, and an optional one, as references."""
    parameters = {**WORDS, "properties": {"a": schema}, "required": ["a"]}
    offer = offered_by(
        [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "required"
    )
    reading, grammar = asked("qwen3_coder", MARKED, offer)
    call = "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
    for word, right in (("red", True), ("light blue", True), ("green", False), ("", False)):
        assert takes(grammar, MARKED, call % word) == right, word
    assert read(reading, call % "red").calls == (("f", '{"a": "red"}'),)
