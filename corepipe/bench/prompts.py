"""Prompts of a wanted number of tokens, from the segments of a workload.

A segment's words (or token ids) are drawn from its id and the run's salt: equal segments are equal texts, and
what another run has sent is in no prefix cache unless it had the same salt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import TypeVar

from corepipe.workload.workload import Segment

FEWEST_WORDS = 200
"""Of one token each; with fewer to choose from, prompts would look alike."""

_T = TypeVar("_T")

Count = Callable[[str], Awaitable[Sequence[int]]]
"""A text's token ids, without those that stand before every prompt."""


@cache
def all_words() -> tuple[str, ...]:
    """English words that most vocabularies have as one token, with a space before them."""
    return tuple(files("corepipe.bench").joinpath("words.txt").read_text(encoding="utf-8").split())


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What prompts are made of: `words`, or token `ids` if there are any; `source` says who knows them."""

    source: str
    words: tuple[str, ...]
    ids: tuple[int, ...] = ()


async def vocabulary(count: Count | None, source: str, *, by_ids: bool) -> Vocabulary:
    """Finds words of one token each, or token ids; without a tokenizer all words are taken as they are."""
    if count is None:
        return Vocabulary("words, counted by the server's usage", all_words())
    if by_ids:
        ids = await count("".join(f" {word}" for word in all_words()))
        return Vocabulary(f"token ids, by {source}", all_words(), tuple(sorted(set(ids))))
    single = await _single(all_words(), count)
    if len(single) < FEWEST_WORDS:
        return Vocabulary(f"words, few of one token each by {source}", all_words())
    return Vocabulary(f"words of one token each, by {source}", single)


async def _single(words: Sequence[str], count: Count) -> tuple[str, ...]:
    """Those of one token each: halves until a part is all good or all bad."""
    tokens = await count("".join(f" {word}" for word in words))
    if len(tokens) == len(words):
        return tuple(words)
    if len(words) <= 1 or len(tokens) >= 2 * len(words):
        return ()
    middle = len(words) // 2
    return (*await _single(words[:middle], count), *await _single(words[middle:], count))


@dataclass(frozen=True, slots=True)
class Scale:
    """How the server's count follows from ours: `fixed` + `each` * words."""

    fixed: float = 0.0
    each: float = 1.0

    @classmethod
    def through(cls, first: tuple[int, int], second: tuple[int, int]) -> Scale:
        """From two prompts as (words, tokens)."""
        each = (second[1] - first[1]) / (second[0] - first[0])
        return cls(max(0.0, first[1] - each * first[0]), each) if each > 0 else cls()

    @property
    def exact(self) -> bool:
        return self.each == 1.0

    def words(self, tokens: int, *, alone: bool) -> int:
        """How many make `tokens`; `alone`: what stands before every prompt counts towards them."""
        return max(1, round((tokens - (self.fixed if alone else 0.0)) / self.each))


class Speller:
    """Spells segments out."""

    def __init__(self, vocabulary: Vocabulary, salt: str, scale: Scale | None = None) -> None:
        self._vocabulary = vocabulary
        self._salt = salt
        self._scale = scale or Scale()

    def scaled(self, scale: Scale) -> Speller:
        """The same, once the server has counted."""
        return Speller(self._vocabulary, self._salt, scale)

    def salted(self, salt: str) -> Speller:
        """The same in other words."""
        return Speller(self._vocabulary, salt, self._scale)

    @property
    def by_ids(self) -> bool:
        return bool(self._vocabulary.ids)

    def text(self, segments: Sequence[Segment], *, alone: bool = True) -> str:
        """Words, each with a space before it; the last segment makes room for what the server adds."""
        *shared, last = segments
        parts = [(segment, False) for segment in shared] + [(last, alone)]
        words = [word for segment, own in parts for word in self._draw(self._vocabulary.words, segment, own)]
        return " " + " ".join(words)

    def ids(self, segments: Sequence[Segment]) -> list[int]:
        """Token ids of a prompt that stands alone."""
        *shared, last = segments
        parts = [(segment, False) for segment in shared] + [(last, True)]
        return [token for segment, own in parts for token in self._draw(self._vocabulary.ids, segment, own)]

    def _draw(self, pool: Sequence[_T], segment: Segment, own: bool) -> list[_T]:
        count = self._scale.words(segment.tokens, alone=own)
        return Random(f"{self._salt} {segment.id}").choices(pool, k=count)  # noqa: S311 -- no secret
