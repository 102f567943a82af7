"""The parts of an answer, whether it is streamed or whole, sent by HTTP or returned by the library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from corepipe.engine.messages import TokenLogprobs


class Logprobs(msgspec.Struct, frozen=True):
    """Logprobs of consecutive tokens; `offsets` are where their texts start.  None: a token without one."""

    tokens: Sequence[int]
    entries: Sequence[TokenLogprobs | None]
    offsets: Sequence[int]


class Text(msgspec.Struct, frozen=True):
    """The next text of a choice; it may be empty, where its tokens have no whole character yet."""

    choice: int
    text: str
    logprobs: Logprobs | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """The next text of a choice's reasoning, which comes before its answer."""

    choice: int
    text: str


class CallStart(msgspec.Struct, frozen=True):
    """The start of call number `index` of a choice."""

    choice: int
    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """The next text of a call's arguments, which are JSON together."""

    choice: int
    index: int
    text: str


class PromptTokens(msgspec.Struct, frozen=True):
    """The tokens of a choice's prompt, and their logprobs; None for what the client did not ask for."""

    choice: int
    tokens: Sequence[int] | None
    logprobs: Sequence[TokenLogprobs | None] | None


class Tokens(msgspec.Struct, frozen=True):
    """The next tokens of a choice, where the client asked for them; its text may lag behind them."""

    choice: int
    tokens: Sequence[int]


class Finish(msgspec.Struct, frozen=True):
    """The end of a choice: OpenAI's `finish_reason`, and the stop string or token as `stop_reason`."""

    choice: int
    finish_reason: str
    stop_reason: str | int | None = None


Said = Text | Reasoning | CallStart | CallArguments | Finish
"""The parts that a choice consists of."""


class Call(msgspec.Struct, frozen=True):
    """A whole call: its arguments are JSON, if the answer was not cut and the model made no mistake."""

    id: str
    name: str
    arguments: str


def joined_calls(parts: Sequence[Said]) -> list[Call]:
    """Joins the parts of the calls of one choice."""
    starts = [part for part in parts if isinstance(part, CallStart)]
    texts: dict[int, list[str]] = {one.index: [] for one in starts}
    for part in parts:
        if isinstance(part, CallArguments):
            texts[part.index].append(part.text)
    return [Call(one.id, one.name, "".join(texts[one.index])) for one in starts]


def joined_reasoning(parts: Iterable[Said]) -> str:
    """Joins the reasoning of one choice."""
    return "".join([part.text for part in parts if isinstance(part, Reasoning)])


def joined_text(texts: Sequence[Text]) -> str:
    """Joins texts one after the other."""
    return texts[0].text if len(texts) == 1 else "".join([one.text for one in texts])


def joined_logprobs(texts: Iterable[Text]) -> Logprobs | None:
    """Joins the logprobs of all tokens; None where there are none."""
    known = [one.logprobs for one in texts if one.logprobs is not None]
    if len(known) < 2:
        return known[0] if known else None
    return Logprobs(
        [token for one in known for token in one.tokens],
        [entry for one in known for entry in one.entries],
        [offset for one in known for offset in one.offsets],
    )
