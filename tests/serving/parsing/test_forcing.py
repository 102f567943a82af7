"""Forced calls: whatever a grammar allows is read as calls whose arguments are what their schemas say.

llguidance itself says what is allowed; texts are drawn from that, token by token.
"""

from __future__ import annotations

import functools
import json
import random

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from corepipe.errors import UserError
from corepipe.serving.grammars import grammar_of, schema_in
from corepipe.serving.parsing.choose import Dialect
from corepipe.serving.parsing.forcing import answer_grammar, schemas_of
from corepipe.serving.parsing.formats import FORMATS, REASONING
from corepipe.serving.parsing.prompt import reading_of
from corepipe.serving.parsing.tools import offered_by
from tests.serving.api.test_tools import MARKED
from tests.serving.http_support import tokenizer
from tests.serving.parsing.cases import read

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


@functools.cache
def checker(which):
    return LLTokenizer(which.backend.to_str(), n_vocab=which.vocab_size, eos_token=sorted(which.eos_ids))


def drawn(grammar, which, rng):
    """A text that the grammar allows, token by token; None where it has not ended."""
    matcher, tokens = LLMatcher(checker(which), grammar), []
    assert not matcher.is_error(), matcher.get_error()
    for _ in range(MOST):
        mask = np.frombuffer(matcher.compute_logit_bias(), np.uint8)
        allowed = np.flatnonzero(mask)
        assert not matcher.is_error(), matcher.get_error()
        token = int(rng.choice(allowed))
        if token in which.eos_ids:
            return which.decode(tokens, skip_special_tokens=False)
        tokens.append(token)
        assert matcher.consume_token(token)
        if matcher.is_stopped():
            return which.decode(tokens, skip_special_tokens=False)
    return None


def takes(grammar, which, text):
    """Whether an answer may be this text."""
    matcher = LLMatcher(checker(which), grammar)
    tokens = which.encode(text, add_special_tokens=False)
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    return matcher.consume_tokens(tokens) and matcher.is_accepting()


def offer_of(**choice):
    return offered_by(TOOLS, choice.get("choice", "required"), parallel=choice.get("parallel", True))


def asked(name, which, offer, *, tail="", reasoning=None):
    """(reading, grammar) of a request to a model that writes so."""
    reading = reading_of(Dialect(FORMATS[name], REASONING[reasoning] if reasoning else None), offer, tail)
    return reading, answer_grammar(reading, narrowed(name, offer), which.added_tokens)


def narrowed(name, offer):
    schemas = schemas_of(FORMATS[name], offer, constrained=True)
    return offer.narrowed({tool: schema_in(grammar_of(schema)) for tool, schema in schemas})


def check(answer, most=99, least=1):
    assert least <= len(answer.calls) <= most
    for name, arguments in answer.calls:
        value = json.loads(arguments)
        jsonschema.validate(value, SCHEMAS[name])
        assert value.keys() <= SCHEMAS[name]["properties"].keys()


@pytest.mark.parametrize("which", [tokenizer(), MARKED], ids=["text", "tokens"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_forced_is_read_as_calls_that_fit_their_schemas(name, which):
    rng, ended = random.Random(f"{name}"), 0
    for round_ in range(6):
        offer = offer_of(parallel=round_ % 2 == 0)
        reading, grammar = asked(name, which, offer)
        text = drawn(grammar, which, rng)
        if text is None:
            continue
        ended += 1
        answer = read(reading, text)
        assert (answer.text, answer.finish) == ("", "tool_calls"), text
        check(answer, 99 if round_ % 2 == 0 else 1)
    assert ended >= 4


@pytest.mark.parametrize("name", ["hermes", "mistral_v11", "pythonic", "qwen3_coder"])
def test_a_named_tool_is_called_once(name):
    offer = offer_of(choice={"type": "function", "function": {"name": "time.now"}})
    reading, grammar = asked(name, MARKED, offer)
    answer = read(reading, drawn(grammar, MARKED, random.Random(1)))
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
            assert not LLMatcher.validate_grammar(whole, checker(which))
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
    grammar = answer_grammar(reading, narrowed(name, offer), MARKED.added_tokens, wanted)
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
        answer_grammar(reading, offer, {}, "start: /x/")


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
    """Whether the opening is a token or characters, which a model may write one by one."""
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
        assert answer_grammar(reading, offer, MARKED.added_tokens) == ""


WORDS = {"$defs": {"word": {"enum": ["red", "light blue"], "type": "string"}}, "type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/word"},
        {"$ref": "#/$defs/word", "title": "Word"},
        {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]},
        {"anyOf": [{"const": "red"}, {"const": "light blue"}]},
    ],
)
def test_texts_in_tags_are_what_their_schemas_refer_to(schema):
    """As pydantic writes an enum, and one that may be left out."""
    parameters = {**WORDS, "properties": {"a": schema}, "required": ["a"]}
    offer = offered_by(
        [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "required"
    )
    reading, grammar = asked("qwen3_coder", MARKED, offer)
    call = "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
    for word, right in (("red", True), ("light blue", True), ("green", False), ("", False)):
        assert takes(grammar, MARKED, call % word) == right, word
    assert read(reading, call % "red").calls == (("f", '{"a": "red"}'),)


def test_arguments_are_narrowed_as_other_answers_are():
    """Days that there are, integers that all readers read alike, no key spelled twice."""
    properties = {"day": {"type": "string", "format": "date"}, "count": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "additionalProperties": True}
    offer = offered_by(
        [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "required"
    )
    _, grammar = asked("hermes", MARKED, offer)
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    for text, right in (
        ('{"day": "2024-02-29"}', True),
        ('{"day": "2023-02-29"}', False),
        ('{"count": 9007199254740991}', True),
        ('{"count": 9007199254740992}', False),
        ('{"count": 1, "c": 2}', True),
        ('{"count": 1, "\\u0063ount": 2}', False),
    ):
        assert takes(grammar, MARKED, call % text) == right, text


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
        (
            "qwen3_coder",
            {"properties": {"a": {"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]}}},
            "tools[0].function.parameters.properties.a",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_forced_is_refused_by_its_path(name, schema, path):
    offer = offered_by([{"type": "function", "function": {"name": "f", "parameters": schema}}], "required")
    with pytest.raises(UserError) as caught:
        asked(name, MARKED, offer)
    assert caught.value.param == path
