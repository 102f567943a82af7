from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from corepipe.bench.prompts import PromptVocabulary, Speller, TokenScale, all_words, vocabulary
from corepipe.workload.workload import Segment

WORDS = PromptVocabulary("a test", all_words())


def test_words_are_words() -> None:
    assert len(all_words()) == len(set(all_words())) == 2000
    assert all(word.isascii() and word.isalpha() for word in all_words())


def test_equal_segments_are_equal_texts() -> None:
    speller = Speller(WORDS, "salt")
    shared, one, two = Segment(-1, 5), Segment(1, 7), Segment(2, 7)
    first, second = speller.text([shared, one]), speller.text([shared, two])
    assert len(first.split()) == len(second.split()) == 12
    assert first.split()[:5] == second.split()[:5]
    assert first != second
    assert first == speller.text([shared]) + speller.text([one])
    assert first != speller.salted("another run").text([shared, one])


def test_the_last_segment_makes_room_for_what_the_server_adds() -> None:
    speller = Speller(WORDS, "salt").scaled(TokenScale.through((16, 20), (48, 52)))
    parts = [Segment(-1, 8), Segment(1, 30)]
    assert len(speller.text(parts).split()) == 8 + 26
    assert len(speller.text(parts, alone=False).split()) == 38
    assert len(speller.text([Segment(1, 2)]).split()) == 1


def test_words_of_several_tokens_are_fewer() -> None:
    scale = TokenScale.through((16, 30), (48, 86))
    assert (scale.fixed, scale.each, scale.exact) == (2.0, 1.75, False)
    assert scale.words(352, alone=True) == 200
    assert TokenScale.through((16, 7), (48, 7)) == TokenScale()


def test_one_token_words_are_found_by_halves() -> None:
    """A vocabulary in which words with an e are two tokens."""

    async def count(text: str) -> Sequence[int]:
        return [0] * sum(1 + ("e" in word) for word in text.split())

    found = asyncio.run(vocabulary(count, "a test", by_ids=False))
    assert set(found.words) == {word for word in all_words() if "e" not in word}
    assert found.source == "words of one token each, by a test"


def test_too_few_of_them_are_not_used() -> None:
    async def count(text: str) -> Sequence[int]:
        return list(text.encode())

    found = asyncio.run(vocabulary(count, "a test", by_ids=False))
    assert found.words == all_words()
    assert "few of one token" in found.source


def test_ids_are_those_of_the_words() -> None:
    async def count(text: str) -> Sequence[int]:
        return list(text.encode())

    speller = Speller(asyncio.run(vocabulary(count, "a test", by_ids=True)), "salt")
    ids = speller.ids([Segment(-1, 5), Segment(1, 7)])
    assert len(ids) == 12
    assert set(ids) <= set(b" abcdefghijklmnopqrstuvwxyz")
    assert speller.by_ids


def test_without_a_tokenizer_usage_counts() -> None:
    assert "usage" in asyncio.run(vocabulary(None, "", by_ids=True)).source


@pytest.mark.parametrize(("fixed", "words"), [(0.0, 10), (3.0, 7)])
def test_scale_of_what_stands_alone(fixed: float, words: int) -> None:
    assert TokenScale(fixed).words(10, alone=True) == words
    assert TokenScale(fixed).words(10, alone=False) == 10
