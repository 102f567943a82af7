"""The sandbox of chat templates, in this process."""

from __future__ import annotations

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from corepipe.models.text import chat_sandbox
from corepipe.models.text.chat_sandbox import CompiledTemplate


def render(text: str, *messages: dict[str, object], **variables: object) -> str:
    return CompiledTemplate(text).render(list(messages), variables)


def test_the_globals_and_filters_that_templates_expect() -> None:
    assert render("{{ x | tojson }}", x={"a": "<\u00e9>"}) == '{"a": "<\u00e9>"}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}") == "3"
    assert render("a{% generation %}{{ x }}{% endgeneration %}b", x="-") == "a-b"
    assert render("{% if true %}\n    x\n{% endif %}") == "    x\n"


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ (x | attr('__class__')).mro() }}",
    ],
)
def test_the_interpreter_is_out_of_reach(text: str) -> None:
    with pytest.raises(SecurityError, match=r"unsafe|not safely callable"):
        render(text, {"role": "user"}, x="1")


@pytest.mark.parametrize(
    "text",
    [
        "{{ x.__class__ }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{% set f = '{0.__class__}'.format %}{{ f(x) }}",
        "{{ '{x.__class__}'.format_map({'x': x}) }}",
        "{{ self._TemplateReference__context }}",
    ],
)
def test_what_is_unsafe_is_undefined(text: str) -> None:
    assert render(text, x="1") == ""


@pytest.mark.parametrize("text", ["{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}"])
def test_there_are_no_other_templates(text: str) -> None:
    with pytest.raises(TypeError, match="no loader"):
        render(text)


def test_a_range_is_short_and_there_is_no_lipsum() -> None:
    with pytest.raises(OverflowError, match=r"[Rr]ange too big"):
        render("{{ range(10 ** 9) }}")
    with pytest.raises(TemplateError, match="lipsum"):
        render("{{ lipsum(n=1) }}")


def test_what_is_written_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_OUTPUT", 10)
    assert render("{% for i in range(10) %}x{% endfor %}") == "x" * 10
    with pytest.raises(MemoryError, match="more than 10 characters"):
        render("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}")
