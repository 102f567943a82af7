"""The drafts of each proposer, and their depth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.config import EngineConfig, validated
from corepipe.engine.drafters.proposers import (
    MOST_PLACES,
    NGramProposer,
    PredictionProposer,
    PrefixLookup,
)
from corepipe.engine.drafters.speculation import PROBE_TOKENS, DraftDepth
from corepipe.errors import UserError
from corepipe.scheduler.request import Request


def searched(tokens: Sequence[int], least: int, most: int) -> int | None:
    """Returns the place that a PrefixLookup finds, by comparing with every place."""
    places = [p for p in range(least, len(tokens)) if tokens[p - least : p] == tokens[len(tokens) - least :]]

    def common(place: int) -> int:
        length = least
        while length < min(most, place) and tokens[place - length - 1] == tokens[-length - 1]:
            length += 1
        return length

    latest = places[::-1][:MOST_PLACES]
    return max(latest, key=lambda place: (common(place), place), default=None)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 3), st.integers(0, 4), st.randoms())
def test_a_lookup_finds_what_a_search_does(tokens: list[int], least: int, more: int, rng: Any) -> None:
    """The pieces in which the sequence came do not matter; of places with as much in common it finds the
    latest."""
    lookup, at = PrefixLookup(least, least + more), 0
    while at < len(tokens):
        at = min(len(tokens), at + rng.randint(1, 9))
        lookup.follow(tokens[:at])
        expected = searched(tokens[:at], least, least + more) if at >= least else None
        assert lookup.find(tokens[:at], tokens[:at]) == expected


def test_an_answer_goes_on_as_it_did_before_and_round_and_round() -> None:
    request = Request("a", [1, 2, 3, 4, 5, 9, 2, 3], 20)
    assert list(NGramProposer(2, 4).propose(request, 3)) == [4, 5, 9]
    request.extend([7, 8, 7, 8])
    assert list(NGramProposer(2, 4).propose(request, 5)) == [7, 8, 7, 8, 7]
    request.append(6)
    assert list(NGramProposer(2, 4).propose(request, 5)) == []


def test_a_prediction_is_followed_left_and_found_again() -> None:
    request = Request("a", [50, 51], 40)
    guesser = PredictionProposer([10, 11, 12, 13, 14, 15, 16])
    assert list(guesser.propose(request, 2)) == [10, 11]
    request.extend([10, 11])
    assert list(guesser.propose(request, 9)) == [12, 13, 14, 15, 16]
    request.extend([12, 99])
    assert list(guesser.propose(request, 9)) == []
    request.extend([13, 14])
    assert list(guesser.propose(request, 9)) == [15, 16]
    request.extend([15, 16])
    assert list(guesser.propose(request, 9)) == []
    other = PredictionProposer([50, 51, 1])
    assert list(other.propose(Request("b", [50, 51], 9), 1)) == [50], "the prompt is no part of the answer"


def test_who_is_right_goes_deep_and_who_is_wrong_stops_and_asks_now_and_then() -> None:
    good, bad = DraftDepth(16), DraftDepth(16)
    for known in range(20):
        good.next(known)
        good.verified(8, 8)
        if deep := bad.next(known):
            bad.verified(deep, 0)
    assert good.next(20) == 16
    guesses = 0
    for known in range(20, 20 + 10 * PROBE_TOKENS):
        if deep := bad.next(known):
            assert deep == 1
            guesses += 1
            bad.verified(1, 0)
    assert 9 <= guesses <= 11


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram", "is not JSON"),
        ("[]", "is not an object"),
        ("{}", "method must be ngram or draft_model, not null"),
        (
            '{"method": "medusa", "num_speculative_tokens": 2}',
            'method must be ngram or draft_model, not "medusa"',
        ),
        ('{"method": "ngram"}', "num_speculative_tokens: Field required"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens: Input should be gr"),
        ('{"method": "ngram", "num_speculative_tokens": "4"}', "num_speculative_tokens: Input should be a v"),
        (
            '{"method": "ngram", "num_speculative_tokens": 4, "quantization": "x"}',
            "quantization: Extra inputs",
        ),
        (
            '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4, "prompt_lookup_max": 2'
            "}",
            "prompt_lookup_min is more than prompt_lookup_max",
        ),
    ],
)
def test_what_is_wrong_with_a_config_is_said_in_a_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        validated(EngineConfig, {"model": "m", "speculative_config": text})
    assert caught.value.message.startswith("speculative_config: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_config_is_read_in_vllms_names_and_crosses_to_the_engine() -> None:
    def lengths(**given: int) -> tuple[int, int]:
        text = json.dumps({"method": "ngram", "num_speculative_tokens": 3, **given})
        config = EngineConfig(model="m", speculative_config=text)  # type: ignore[arg-type]
        assert EngineConfig(**config.model_dump(mode="json")) == config
        assert config.speculative_config is not None
        return config.speculative_config.prompt_lookup_min, config.speculative_config.prompt_lookup_max

    assert lengths() == (5, 5)
    assert lengths(prompt_lookup_max=3) == (3, 3)
    assert lengths(prompt_lookup_min=2) == (2, 2)
    assert lengths(prompt_lookup_min=2, prompt_lookup_max=4) == (2, 4)
