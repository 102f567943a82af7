"""Offered tools, from plain values as in the library."""

from __future__ import annotations

import pytest

from corepipe.answers.parsing.choose import Dialect
from corepipe.answers.parsing.formats import FORMATS
from corepipe.answers.parsing.prompt import (
    reading_of,
    reasoning_variables,
    template_input,
    unheard,
    verbosity_variables,
)
from corepipe.answers.parsing.tag_calls import value_types
from corepipe.answers.parsing.tools import offered_by
from corepipe.errors import UserError


def tool(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


def allowed(mode):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool("f")]}}


def names(functions):
    return [one.name for one in functions]


def test_nothing_is_offered():
    assert offered_by([]) is None
    assert offered_by([], "auto") is None
    with pytest.raises(UserError, match="needs tools"):
        offered_by([], "required")


@pytest.mark.parametrize(
    ("choice", "callable_", "forced", "named", "single"),
    [
        (None, ["f", "g"], False, False, False),
        ("auto", ["f", "g"], False, False, False),
        ("none", [], False, False, False),
        ("required", ["f", "g"], True, False, False),
        (tool("g"), ["g"], True, True, True),
        (allowed("auto"), ["f"], False, False, False),
        (allowed("required"), ["f"], True, False, False),
    ],
)  # fmt: skip
def test_choices(choice, callable_, forced, named, single):
    offer = offered_by([tool("f"), tool("g", strict=True)], choice)
    assert names(offer.tools) == ["f", "g"]
    assert names(offer.callable) == callable_
    assert (offer.forced, offer.named, offer.single) == (forced, named, single)
    assert offered_by([tool("f")], parallel=False).single


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([tool("f"), tool("f")], None, "tools[1].function.name"),
        ([tool("a/b")], None, "tools[0].function.name"),
        ([tool("f", parameters=[])], None, "tools[0].function.parameters"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([tool("f")], {"type": "function", "function": {"name": "x"}}, "tool_choice.function.name"),
        ([tool("f")], "any", "tool_choice"),
    ],
)
def test_refusals_name_the_path(tools, choice, param):
    with pytest.raises(UserError) as caught:
        offered_by(tools, choice)
    assert caught.value.param == param
    assert param in caught.value.message


def test_the_types_of_a_parameter_are_found_wherever_they_are_said():
    chain = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(20)} | {"20": {"type": "integer"}}
    union = {"anyOf": [{"type": "string"}, {"oneOf": [{"enum": [True, None]}, {"const": 1.5}, True]}]}
    schema = {"properties": {"deep": {"$ref": "#/$defs/0"}, "union": union, "any": {}}, "$defs": chain}
    assert value_types(schema, "deep") == {"integer"}
    assert value_types(schema, "union") == {"string", "boolean", "null", "number"}
    assert value_types(schema, "any") == value_types(schema, "none") == value_types({}, "a") == set()


def test_schemas_that_refer_to_each_other_have_an_end():
    both = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}] * 500
    defs = {"a": {"anyOf": both}, "b": {"anyOf": [*both, {"type": "null"}]}}
    assert value_types({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": defs}, "x") == {"null"}


def test_what_templates_are_given():
    offer = offered_by([tool("f", description="d", strict=True), tool("g")])
    nothing = {"type": "object", "properties": {}}
    described = [tool("f", description="d", parameters=nothing), tool("g", parameters=nothing)]
    said = [{"role": "user", "content": "Hi"}]
    told = Dialect(FORMATS["smollm3"], None, presents_tools=True, extra=("xml_tools",))
    assert template_input(said, offer, told) == (said, {"tools": described, "xml_tools": described})
    assert template_input(said, None, told) == (said, {})
    for name, example in (("hermes", '<tool_call>\n{"name": NAME'), ("smollm2", '<tool_call>[{"name": NAME')):
        (system, *rest), variables = template_input(said, offer, Dialect(FORMATS[name]))
        assert (rest, variables, system["role"]) == (said, {}, "system")
        assert example in system["content"]


def test_how_much_to_reason():
    assert reasoning_variables(None, "reasoning_effort") == {}
    assert reasoning_variables("low", "{{ reasoning_effort }}") == {"reasoning_effort": "low"}
    assert reasoning_variables("none", "{% if enable_thinking %}") == {"enable_thinking": False}
    assert reasoning_variables("high", "{% if enable_thinking %}") == {"enable_thinking": True}
    assert reasoning_variables("none", "{{ message.thinking }}") == {}
    assert reasoning_variables("high", "{{ message.thinking }}") == {}
    assert verbosity_variables("low", "{{ verbosity }}") == {"verbosity": "low"}
    assert (
        verbosity_variables("low", "{{ message.verbosity }}") == verbosity_variables(None, "verbosity") == {}
    )


def test_which_settings_a_template_makes_nothing_of():
    assert unheard("high", "low", "{{ messages }}") == ["reasoning_effort", "verbosity"]
    assert unheard("high", "high", "{% if thinking %}{{ verbosity }}") == []
    assert unheard("none", "medium", None) == unheard(None, None, None) == []


def test_what_nobody_reads_is_text():
    assert reading_of(Dialect(FORMATS["hermes"]), None, "") is None
    assert reading_of(Dialect(FORMATS["hermes"]), offered_by([tool("f")], "none"), "") is None
