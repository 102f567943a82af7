"""Prompts with a given number of tokens, from the segments of a workload.

A segment's words (or token ids) are drawn from its id and the run's salt: equal segments are equal texts, and
no prefix cache holds what another run has sent unless it had the same salt.
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
"""The least number of words of one token each; with fewer to choose from, prompts would look alike."""

_T = TypeVar("_T")

Count = Callable[[str], Awaitable[Sequence[int]]]
"""Returns a text's token ids, without those that precede every prompt."""


@cache
def all_words() -> tuple[str, ...]:
    """Returns English words that most vocabularies have as one token, with a space before them."""
    return tuple(files("corepipe.bench").joinpath("words.txt").read_text(encoding="utf-8").split())


@dataclass(frozen=True, slots=True)
class PromptVocabulary:
    """Material of prompts: `words`, or token `ids` if there are any; `source`: who counted them."""

    source: str
    words: tuple[str, ...]
    ids: tuple[int, ...] = ()


async def vocabulary(count: Count | None, source: str, *, by_ids: bool) -> PromptVocabulary:
    """Finds words of one token each, or token ids; without a tokenizer all words are used."""
    if count is None:
        return PromptVocabulary("words, counted by the server's usage", all_words())
    if by_ids:
        ids = await count("".join(f" {word}" for word in all_words()))
        return PromptVocabulary(f"token ids, by {source}", all_words(), tuple(sorted(set(ids))))
    single = await _single(all_words(), count)
    if len(single) < FEWEST_WORDS:
        return PromptVocabulary(f"words, few of one token each by {source}", all_words())
    return PromptVocabulary(f"words of one token each, by {source}", single)


async def _single(words: Sequence[str], count: Count) -> tuple[str, ...]:
    """Returns the words of one token each: halves the list until a part has only such words or none."""
    tokens = await count("".join(f" {word}" for word in words))
    if len(tokens) == len(words):
        return tuple(words)
    if len(words) <= 1 or len(tokens) >= 2 * len(words):
        return ()
    middle = len(words) // 2
    return (*await _single(words[:middle], count), *await _single(words[middle:], count))


@dataclass(frozen=True, slots=True)
class TokenScale:
    """The relation of the server's token count to the number of words: `fixed` + `each` * words."""

    fixed: float = 0.0
    each: float = 1.0

    @classmethod
    def through(cls, first: tuple[int, int], second: tuple[int, int]) -> TokenScale:
        """Returns the scale through two prompts, given as (words, tokens)."""
        each = (second[1] - first[1]) / (second[0] - first[0])
        return cls(max(0.0, first[1] - each * first[0]), each) if each > 0 else cls()

    @property
    def exact(self) -> bool:
        return self.each == 1.0

    def words(self, tokens: int, *, alone: bool) -> int:
        """Returns the number of words for `tokens`; `alone`: the tokens that precede every prompt count
        towards them."""
        return max(1, round((tokens - (self.fixed if alone else 0.0)) / self.each))


class Speller:
    """Turns segments into texts or token ids."""

    def __init__(self, vocabulary: PromptVocabulary, salt: str, scale: TokenScale | None = None) -> None:
        self._vocabulary = vocabulary
        self._salt = salt
        self._scale = scale or TokenScale()

    def scaled(self, scale: TokenScale) -> Speller:
        """Returns the same speller with the scale that the server's counts gave."""
        return Speller(self._vocabulary, self._salt, scale)

    def salted(self, salt: str) -> Speller:
        """Returns the same speller with different words."""
        return Speller(self._vocabulary, salt, self._scale)

    @property
    def by_ids(self) -> bool:
        return bool(self._vocabulary.ids)

    def text(self, segments: Sequence[Segment], *, alone: bool = True) -> str:
        """Returns words, each after a space; the last segment is shorter by what the server adds."""
        *shared, last = segments
        parts = [(segment, False) for segment in shared] + [(last, alone)]
        words = [word for segment, own in parts for word in self._draw(self._vocabulary.words, segment, own)]
        return " " + " ".join(words)

    def ids(self, segments: Sequence[Segment]) -> list[int]:
        """Returns the token ids of a whole prompt."""
        *shared, last = segments
        parts = [(segment, False) for segment in shared] + [(last, True)]
        return [token for segment, own in parts for token in self._draw(self._vocabulary.ids, segment, own)]

    def _draw(self, pool: Sequence[_T], segment: Segment, own: bool) -> list[_T]:
        count = self._scale.words(segment.tokens, alone=own)
        return Random(f"{self._salt} {segment.id}").choices(pool, k=count)  # noqa: S311 -- no secret
