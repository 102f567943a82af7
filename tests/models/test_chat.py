"""The sandbox of chat templates."""

from __future__ import annotations

import pytest

from corepipe.errors import UserError
from corepipe.models.chat import ChatTemplate


def render(text: str, *messages: dict[str, object], **variables: object) -> str:
    return ChatTemplate(text).render(messages, variables)


def test_the_globals_and_filters_that_templates_expect() -> None:
    assert render("{{ x | tojson }}", x={"a": "<\u00e9>"}) == '{"a": "<\u00e9>"}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}") == "3"
    assert render("a{% generation %}{{ x }}{% endgeneration %}b", x="-") == "a-b"
    assert render("{% if true %}\n    x\n{% endif %}") == "    x\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 'x' }}", "refuses these messages"),
        ("{{ messages[9]['role'] }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ range(10 ** 9) }}", "[Rr]ange too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_failures_are_user_errors_that_name_the_field(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        render(text, {"role": "user", "content": ["not", "text"]})
    assert caught.value.param == "messages"
    assert "\n" not in caught.value.message


def test_a_template_that_does_not_parse_is_refused() -> None:
    with pytest.raises(UserError, match="not valid"):
        ChatTemplate("{% for %}")
