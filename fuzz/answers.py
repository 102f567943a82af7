"""Targets for the output of models: stop strings, tool calls, and descriptions of them in checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from corepipe.answers.parsing.formats import FORMATS, REASONING, AnswerFormat
from corepipe.answers.parsing.reading import AnswerReader
from corepipe.answers.parsing.response_template import UnreadableError, from_response_template
from corepipe.answers.parts import (
    Detokenizer,
    Finish,
    Pieces,
    Said,
    Text,
    joined_calls,
    joined_reasoning,
    joined_text,
)
from fuzz.checks import check


def stop_strings(data: bytes) -> None:
    """Checks that streamed text equals whole text, and ends before the stop string that is complete first."""
    tokens, stops = _split_stops(data)
    text = tokens.decode("utf-8", errors="replace")
    streamed = Detokenizer(Pieces(_Bytes(), skip_special_tokens=False), stops)
    shown, used = "", 0
    for at, token in enumerate(tokens):
        part, _ = streamed.feed([token])
        shown, used = shown + part, at + 1
        if streamed.matched is not None:
            break
    else:
        shown += streamed.flush()
    whole = Detokenizer(Pieces(_Bytes(), skip_special_tokens=False), stops)
    part, taken = whole.feed(list(tokens))
    check((taken, whole.matched) == (used, streamed.matched), "one feed ends elsewhere than many")
    check(part + ("" if whole.matched else whole.flush()) == shown, "one feed shows another text than many")
    if streamed.matched is None:
        check(shown == text, "text was lost")
    else:
        check(
            shown + streamed.matched == text[: len(shown) + len(streamed.matched)], "cut in the wrong place"
        )
    check(not any(stop in shown for stop in stops), "a stop string was shown")


FUNCTIONS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"f": {"properties": {"a": {"type": "integer"}}}, "g": {}}
)


def tool_calls(data: bytes) -> None:
    """Checks that answers of every format are read alike in any pieces, with arguments as text."""
    if len(data) < 3:
        return
    names = sorted(FORMATS)
    reading = AnswerFormat(
        calls=FORMATS[names[data[0] % len(names)]],
        reasoning=REASONING["qwen3"] if data[1] & 1 else None,
        tools=FUNCTIONS,
        thinking=data[1] & 3 == 3,
        single=bool(data[1] & 4),
    )
    text = data[3:].decode("utf-8", errors="replace")
    size = data[2] % 16 + 1
    whole = _read_answer(reading, [text])
    check(whole == _read_answer(reading, list(text)), "one character at a time is read differently")
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    check(whole == _read_answer(reading, parts), "pieces are read differently")
    check(len(whole[2]) < 2 or not reading.single, "more calls than are wanted")
    if not whole[2] and reading.reasoning is None:
        check(whole[0] == text, "text was lost or changed")


def _read_answer(reading: AnswerFormat, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    reader, said = AnswerReader(0, reading), list[Said]()
    for piece in pieces:
        said += reader.take(Text(0, piece))
    said += reader.end(Finish(0, "stop"))
    calls = [(one.name, one.arguments) for one in joined_calls(said)]
    texts = [part for part in said if isinstance(part, Text)]
    check(all(name in FUNCTIONS for name, _ in calls), "a call of what is not offered")
    return joined_text(texts), joined_reasoning(said), calls


def response_template(data: bytes) -> None:
    """Checks that a checkpoint's description of its answers is read as formats, or refused."""
    with suppress(ValueError, RecursionError, UnreadableError):
        spec = json.loads(data)
        if isinstance(spec, dict):
            calls, reasoning = from_response_template(spec)
            reader = AnswerReader(0, AnswerFormat(calls, reasoning, FUNCTIONS))
            reader.take(Text(0, '<tool_call>{"name": "f"}</tool_call>'))
            reader.end(Finish(0, "stop"))


def _split_stops(data: bytes) -> tuple[bytes, list[str]]:
    """Splits off the stop strings; the first two bytes are their number and their length."""
    count, length = (data[0] % 4, data[1] % 6 + 1) if len(data) > 1 else (0, 1)
    cut = 2 + count * length
    parts = [data[2 + i * length : 2 + (i + 1) * length] for i in range(count)]
    return data[cut:][:256], [text for part in parts if (text := part.decode("utf-8", errors="ignore"))]


class _Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:  # noqa: ARG002 -- the protocol's
        return bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self, token: int, /) -> bytes:
        return bytes([token])
