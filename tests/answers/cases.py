"""Texts that models of each format write, with their meaning: calls, near-misses, text around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corepipe.answers.parsing.formats import FORMATS, REASONING, AnswerFormat
from corepipe.answers.parsing.reading import AnswerReader
from corepipe.answers.parts import (
    Finish,
    Said,
    Text,
    joined_calls,
    joined_reasoning,
    joined_text,
)

TOOLS: Mapping[str, Mapping[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "s": {"type": "string"},
            "on": {"type": ["boolean", "null"]},
            "xs": {"$ref": "#/$defs/xs"},
            "either": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        },
        "$defs": {"xs": {"type": "array", "items": {"type": "integer"}}},
    },
    "get-x.y": {"type": "object", "properties": {}},
}


@dataclass(frozen=True)
class Read:
    """A whole answer: text, reasoning, (name, arguments) of its calls, and its finish_reason."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    finish: str = "stop"


def reading_of(name: str, **more: Any) -> AnswerFormat:
    thoughts = more.pop("reasoning", None)
    return AnswerFormat(
        calls=FORMATS[name] if name else None,
        reasoning=REASONING[thoughts] if thoughts else None,
        tools=TOOLS if name else {},
        **more,
    )


def parts_of(reading: AnswerFormat, pieces: Sequence[str], finish: str = "stop") -> list[Said]:
    """Returns the parts of an answer that comes in these pieces."""
    reader, parts = AnswerReader(0, reading), list[Said]()
    for piece in pieces:
        parts += reader.take(Text(0, piece))
        if reader.full:
            break
    return [*parts, *reader.end(Finish(0, finish))]


def summed(parts: Sequence[Said]) -> Read:
    texts = [part for part in parts if isinstance(part, Text)]
    assert isinstance(parts[-1], Finish)
    return Read(
        joined_text(texts),
        tuple((one.name, one.arguments) for one in joined_calls(parts)),
        joined_reasoning(parts),
        parts[-1].finish_reason,
    )


def read(reading: AnswerFormat, *pieces: str, finish: str = "stop") -> Read:
    return summed(parts_of(reading, pieces, finish))


def called(*calls: tuple[str, str], text: str = "", reasoning: str = "") -> Read:
    return Read(text, calls, reasoning, "tool_calls")


ONE = '{"name": "f", "arguments": {"a": 1}}'
F1, F2, X = ("f", '{"a": 1}'), ("f", '{"a": 2}'), ("get-x.y", "{}")

CALLS: Sequence[tuple[str, str, Read]] = (
    ("hermes", f"<tool_call>\n{ONE}\n</tool_call>", called(F1)),
    ("hermes", f"Let me see.\n\n<tool_call>{ONE}</tool_call>", called(F1, text="Let me see.")),
    ("hermes", f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{ONE}\n</tool_call>", called(F1, F1)),
    ("hermes", f"<tool_call>{ONE}</tool_call> Done.", called(F1, text="Done.")),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', called(F1)),
    ("hermes", '<tool_call>{"name": "get-x.y"}</tool_call>', called(X)),
    ("hermes", '<tool_call>{"name": "get-x.y", "arguments": null}</tool_call>', called(X)),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', called(F1)),
    (
        "hermes",
        '<tool_call>{"id": [1, {"b": 2}], "name": "f", "arguments": {"a": 1}, "x": -1.5}</tool_call>',
        called(F1),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>', called(F1)),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "}</tool_call>\\"{[é\\\\"}}</tool_call>',
        called(("f", '{"s": "}</tool_call>\\"{[é\\\\"}')),
    ),
    ("hermes", f"<tool_call>{ONE}</tool", called(F1)),
    ("smollm2", f'<tool_call>[{ONE}, {{"name": "f", "arguments": {{"a": 2}}}}]</tool_call>', called(F1, F2)),
    ("smollm3", f"<tool_call>\n{ONE}\n</tool_call>", called(F1)),
    ("smollm3_python", "Now <code>f(a=1)\nget-x.y()</code>", called(F1, X, text="Now")),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', called(F1)),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', called(F1)),
    ("llama3_json", 'Hm. <|python_tag|>{"name": "f", "parameters": {"a": 1}}', called(F1, text="Hm.")),
    (
        "llama3_json",
        '\n{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {"a": 2}}',
        called(F1, F2),
    ),
    ("pythonic", "[f(a=1), get-x.y()]", called(F1, X)),
    (
        "pythonic",
        "[f(s='it\\'s ]', on=None, xs=(1, 2))]",
        called(("f", '{"s": "it\'s ]", "on": null, "xs": [1, 2]}')),
    ),
    (
        "pythonic",
        '[f(s="a\\nb", on=true, xs=[-1, {"k": None}])]',
        called(("f", '{"s": "a\\nb", "on": true, "xs": [-1, {"k": null}]}')),
    ),
    ("llama4_pythonic", "<|python_start|>[f(a=1)]<|python_end|>", called(F1)),
    ("llama4_pythonic", "[f(a=1)]", called(F1)),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 2}}]',
        called(F1, F2),
    ),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', called(F1)),
    ("mistral_v11", 'Hm[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get-x.y[ARGS]{}', called(F1, X, text="Hm")),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        called(F1),
    ),
    (
        "qwen3_coder",
        '<tool_call>\n<function=f>\n<parameter=s>\n\nif a < b:\n  "c"\n</para>\n\n</parameter>\n'
        "<parameter=on>True</parameter>\n<parameter=xs>\n[1, 2]\n</parameter>\n"
        "<parameter=either>x</parameter>\n<parameter=new>\n5\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call><function=get-x.y></function></tool_call>",
        called(
            (
                "f",
                '{"s": "\\nif a < b:\\n  \\"c\\"\\n</para>\\n", '
                '"on": true, "xs": [1, 2], "either": "x", "new": "5"}',
            ),
            X,
        ),
    ),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=either>1.5</parameter></function></tool_call>",
        called(("f", '{"either": 1.5}')),
    ),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>one</parameter></function></tool_call>",
        called(("f", '{"a": "one"}')),
    ),
)

NEAR_MISSES: Sequence[tuple[str, str]] = (
    ("hermes", "Use <tool_call> and </tool_call> around it."),
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call"),
    ("hermes", "a <tool_cal <tool_call>\n"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no JSON"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>f(a=1)</tool_call>"),
    ("hermes", ONE),
    ("hermes", " \n leading and trailing \n"),
    ("hermes", ""),
    ("llama3_json", '{"name": "Ann", "parameters": {"a": 1}}'),
    ("llama3_json", '{"name": "f"}'),
    ("llama3_json", f"It is {ONE}"),
    ("llama3_json", "[1, 2, 3]"),
    ("llama3_json", '{"a": {"b": [1, "}"]}}'),
    ("llama3_json", "{"),
    ("pythonic", "[1, 2] is a list"),
    ("pythonic", "[f(a=1), see above]"),
    ("pythonic", "[f(a=1), g(a=1)]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f(**a)]"),
    ("pythonic", "[f(a=open('x'))]"),
    ("pythonic", "[f(a=1e999)]"),
    ("pythonic", "[f(a={1: 2})]"),
    ("pythonic", "[f(a=b'x')]"),
    ("pythonic", "[]"),
    ("pythonic", "[f(a=1)"),
    ("pythonic", "so [f(a=1)]"),
    ("pythonic", "[f(a=" + "-" * 4000 + "1)]"),
    ("pythonic", "[f(a=" + "[" * 4000 + "]" * 4000 + ")]"),
    ("smollm3_python", "<code>print(1)</code>"),
    ("smollm3_python", "<code>x = f(a=1)</code>"),
    ("mistral", "[TOOL_CALLS] are special"),
    ("mistral", "[TOOL_CALLS]f[ARGS] {"[:-1]),
    ("mistral_v11", '[TOOL_CALLS]unknown[ARGS]{"a": 1}'),
    ("qwen3_coder", f"<tool_call>{ONE}</tool_call>"),
    ("qwen3_coder", "<tool_call><function=unknown></function></tool_call>"),
    ("qwen3_coder", "<tool_call><function=f"),
)


def splits(text: str) -> Iterator[list[str]]:
    """Yields ways to split a text: each cut in two, and all pieces of a few lengths."""
    yield from ([text[:at], text[at:]] for at in range(len(text) + 1))
    for size in (1, 2, 3, 7):
        yield [text[at : at + size] for at in range(0, len(text), size)]
