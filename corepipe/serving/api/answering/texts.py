"""What is asked about: texts, token ids and pairs of texts, made prompts of, within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from corepipe.serving.api.answering.service import Service, check_length, encoded
from corepipe.serving.api.answering.truncation import READABLE, Truncation
from corepipe.serving.api.http.errors import ApiError, invalid

MAX_ENTRIES = 2048
"""Texts, or lists of tokens, in one request; OpenAI's limit."""
MAX_INPUT_TOKENS = 300_000
"""Tokens in one request; OpenAI's limit."""
ENTRY_WORK = 64
"""Characters that take as long to encode as an entry takes besides its characters."""

Input = str | list[str | int | list[int]]
"""Text, token ids, or a list of either."""
E = TypeVar("E")


class EncodedPrompt(NamedTuple):
    """Token ids of a text, or of two; `second`: where the other's token types begin (0: there is one).

    image: what is read instead, as `messages.Submit` has it; a zero then stands for each row of it.
    """

    ids: list[int]
    second: int = 0
    image: bytes = b""


class TextPair(NamedTuple):
    """Two texts that are read together, and the field that the second came from."""

    first: str
    second: str
    field: str


class EncodingOptions(NamedTuple):
    """How texts are read: `most` tokens each, cut where they are to be cut; `special`: framed as the model
    wants it.  `most_second`: tokens kept of a pair's second text (0: all)."""

    most: int
    cut: Truncation | None = None
    special: bool = True
    most_second: int = 0


def entries(given: Input, field: str) -> list[str | list[int]]:
    """Of any of the four shapes.  Raises ApiError for a mixture."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid(f"{field} must not be empty.", field)
    ids = [item for item in given if isinstance(item, int)]
    if len(ids) == len(given):
        return [ids]
    several = [item for item in given if not isinstance(item, int)]
    if len(several) != len(given) or len({type(item) for item in several}) > 1:
        raise invalid(f"{field} mixes texts, token ids and lists of them.", field, "invalid_type")
    return several


def check_said(listed: Sequence[str | list[int]], field: str) -> None:
    """Raises ApiError where a text says nothing, of which there is no vector."""
    if "" in listed:
        raise invalid(f"{field} must not be an empty text.", field)


def check_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Raises ApiError for what is no token."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise invalid(f"{field}: token ids must be from 0 to {vocab_size - 1}.", field)


def check_count(count: int, field: str) -> None:
    """Raises ApiError for more entries than a request may have."""
    if count > MAX_ENTRIES:
        raise invalid(f"{field} has {count} entries; at most {MAX_ENTRIES} are taken.", field)


async def read_entries(
    service: Service,
    listed: Sequence[str | list[int]],
    field: str,
    reading: EncodingOptions,
    before: str = "",
) -> list[EncodedPrompt]:
    """Prompts of texts, each with `before` in front, or of token ids.

    Raises ApiError for what is empty, too long, or no token, naming the entry.
    """
    check_count(len(listed), field)
    if len(listed) == 1:
        prepare = partial(_prompt, service, reading, before, field)
    else:
        prepare = partial(_numbered, service, reading, before, field)
    size = sum(map(len, listed)) + ENTRY_WORK * len(listed)
    return await service.beside(size, lambda: _within_limit(prepare, enumerate(listed), field))


async def read_pairs(
    service: Service, pairs: Sequence[TextPair], field: str, reading: EncodingOptions
) -> list[EncodedPrompt]:
    """Prompts of pairs of texts.  Raises ApiError as `read_entries`."""
    check_count(len(pairs), field)
    size = sum(len(pair.first) + len(pair.second) for pair in pairs) + ENTRY_WORK * len(pairs)
    prepare = partial(_paired, service, reading)
    return await service.beside(size, lambda: _within_limit(prepare, pairs, field))


def check_total(tokens: int, field: str) -> None:
    """Raises ApiError for more tokens than a request may have."""
    if tokens > MAX_INPUT_TOKENS:
        message = f"{field} has more than {MAX_INPUT_TOKENS} tokens in all."
        raise invalid(message, field, "context_length_exceeded")


def _within_limit(
    prepare: Callable[[E], EncodedPrompt], listed: Iterable[E], field: str
) -> list[EncodedPrompt]:
    """Stops where there are too many tokens: nothing more is encoded then."""
    prompts, total = [], 0
    for one in listed:
        prompts.append(prepare(one))
        total += len(prompts[-1].ids)
        check_total(total, field)
    return prompts


def _paired(service: Service, reading: EncodingOptions, pair: TextPair) -> EncodedPrompt:
    tokenizer, cut = service.tokenizer, reading.cut
    readable = reading.most if cut is None and not reading.most_second else READABLE
    for text in (pair.first, pair.second):
        check_length(text, pair.field, readable, tokenizer.encode)
    most = None if cut is None else cut.most
    ids, second = tokenizer.pair(
        pair.first, pair.second, reading.special, most=most, most_second=reading.most_second or None
    )
    if len(ids) > reading.most:
        raise too_long(len(ids), reading.most, pair.field)
    return EncodedPrompt(ids, second)


def _numbered(
    service: Service, reading: EncodingOptions, before: str, field: str, item: tuple[int, str | list[int]]
) -> EncodedPrompt:
    return _prompt(service, reading, before, f"{field}[{item[0]}]", item)


def _prompt(
    service: Service, reading: EncodingOptions, before: str, field: str, item: tuple[int, str | list[int]]
) -> EncodedPrompt:
    tokenizer, given, cut = service.tokenizer, item[1], reading.cut
    if isinstance(given, str):
        readable = reading.most if cut is None else cut.readable
        ids = encoded(before + given, field, readable, lambda text: tokenizer.encode(text, reading.special))
    else:
        check_ids(given, service.vocab_size, field)
        ids = given
    if not ids:
        raise invalid(f"{field} must not be empty.", field)
    if cut is not None:
        ids = tokenizer.cut(ids, cut.most, cut.side, framed=reading.special and isinstance(given, str))
    if len(ids) > reading.most:
        raise too_long(len(ids), reading.most, field)
    return EncodedPrompt(ids)


def too_long(tokens: int, most: int, field: str) -> ApiError:
    """400: an entry has more tokens than the model reads."""
    message = (
        f"This model's maximum context length is {most} tokens. However, {field} has {tokens} tokens; "
        "truncate_prompt_tokens: -1 has it cut."
    )
    return invalid(message, field, "context_length_exceeded")
