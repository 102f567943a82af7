"""Made-up requests, and checkpoints whose answers have reasoning, text and calls to be read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.scripted import Script, call, write_scripted

TEXTS = 12
"""The texts of a checkpoint: with more of them, the weights mistake tokens for the end."""
OPENED = frozenset({3, 7, 11})
"""The texts whose reasoning the prompt opens."""

TEMPLATE = """\
{%- if tools %}<|im_start|>system
To call a tool, answer <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
{%- set asked = (messages | selectattr('role', 'equalto', 'user') | list | last).content %}
{%- for token in TOKENS %}{% if asked.endswith('#' ~ loop.index0 ~ '.') %}{{ token }}{% endif %}
{%- endfor %}"""

WORDS = (
    "so",
    "Paris",
    "é",
    "naïve",
    "{",
    "}",
    "<tool",
    "\n\n",
    "and",
    "日本",
    "</think",
    "[1]",
    "stop",
    "🙂",
    "a b",
)
STOPS = ("stop", "so", "Paris", "naïve", "}}", "tool_c", "🙂", "\n\n")
CITY = {"type": "string", "enum": ["Paris", "Rome", "日本"]}
TOOLS: Mapping[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": CITY, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "clock": {"type": "object", "properties": {}},
    "note": {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2}},
        "required": ["tags"],
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def said(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, most)))


def _call(rng: random.Random) -> str:
    name = rng.choice([*TOOLS, "unknown"])
    arguments = {
        "city": rng.choice(WORDS),
        "tags": ["x"] * rng.randrange(3),
        "deep": {"a": [1, None, said(rng, 4)]},
    }
    text = call(name, **dict(rng.sample(sorted(arguments.items()), rng.randrange(3))))
    return text[: rng.randrange(20, len(text))] if rng.random() < 0.15 else text


def answer(rng: random.Random, number: int) -> str:
    """Makes a text as models write them: reasoning, words and calls, some of them broken."""
    thoughts = said(rng, 12)
    parts = [f"t{number} "]
    if number in OPENED:
        parts = [f"t{number} {thoughts}</think>\n\n"]
    elif rng.random() < 0.5:
        parts = [f"<think>\nt{number} {thoughts}\n</think>\n\n"]
    for _ in range(rng.randrange(1, 4)):
        parts.append(_call(rng) if rng.random() < 0.7 else said(rng, 8))
    return "\n".join(parts)


class MadeUp(Script):
    """Texts, each after the token that the template writes for a question that ends with its number."""

    def texts(self) -> dict[str, str]:
        return {token(at): text for at, text in self.turns.items()}


def token(number: int) -> str:
    return f"<|turn_{number}|>" + ("<think>\n" if number in OPENED else "")


def write_checkpoint(folder: Path, seed: int) -> Path:
    """Writes a model that gives one of its texts to each question."""
    rng = random.Random(seed)
    write_scripted(folder, MadeUp({number: answer(rng, number) for number in range(TEXTS)}))
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    tokens = json.dumps([token(number) for number in range(TEXTS)])
    file.write_text(json.dumps(settings | {"chat_template": TEMPLATE.replace("TOKENS", tokens)}))
    return folder


@dataclass(frozen=True)
class Turn:
    """A message of "system", "user", "assistant" (reasoning and calls, by id) or "tool" (its result)."""

    role: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    id: str = ""


@dataclass(frozen=True)
class Case:
    """A request, in no dialect.  choice: "auto", "required", "none" or the name of a tool."""

    turns: tuple[Turn, ...]
    max_tokens: int
    temperature: float
    seed: int
    tools: tuple[str, ...] = ()
    strict: bool = False
    choice: str = "auto"
    parallel: bool = True
    stops: tuple[str, ...] = ()
    schema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Tells whether all dialects, completions as well, may ask for it."""
        return not self.tools


def _history(rng: random.Random) -> Iterator[Turn]:
    if rng.random() < 0.5:
        yield Turn("system", said(rng, 6))
    for at in range(rng.randrange(3)):
        yield Turn("user", said(rng, 6))
        calls = tuple(
            (f"call{at}{n:05}", rng.choice([*TOOLS]), {"city": said(rng, 3)}) for n in range(rng.randrange(3))
        )
        yield Turn("assistant", said(rng, 6), said(rng, 4) if rng.random() < 0.5 else "", calls)
        for number, *_ in calls:
            yield Turn("tool", said(rng, 6), id=number)


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for number in range(count):
        asked = Turn("user", f"{said(rng, 6)} #{rng.randrange(TEXTS)}.")
        tools = tuple(rng.sample(sorted(TOOLS), rng.randrange(1, 4))) if rng.random() < 0.7 else ()
        yield Case(
            turns=(*_history(rng), asked),
            max_tokens=rng.choice([1, 8, 30, 100, 200, 300]),
            temperature=rng.choice([0.0, 0.7, 1.0]),
            seed=number,
            tools=tools,
            strict=rng.random() < 0.3,
            choice=rng.choice(["auto", "auto", "auto", "required", "none", tools[0]]) if tools else "auto",
            parallel=rng.random() < 0.7,
            stops=tuple(rng.sample(STOPS, rng.randrange(1, 4))) if rng.random() < 0.4 else (),
            schema=SCHEMA if rng.random() < 0.2 else {},
        )
