"""Drafts get what is left of a batch, and leave nothing behind that was guessed wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from corepipe.scheduler.request import Chunk, FinishReason, Request
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import config, run, spans


class Says:
    """Guesses the same each time, and keeps what it was asked and told."""

    def __init__(self, *guess: int) -> None:
        self.guess = guess
        self.asked: list[int] = []
        self.told: list[tuple[int, int]] = []

    def propose(self, _request: Request, most: int) -> Sequence[int]:
        self.asked.append(most)
        return self.guess[:most]

    def verified(self, drafts: int, accepted: int) -> None:
        self.told.append((drafts, accepted))


def request(name: str, prompt: int, *guess: int, max_tokens: int = 50, **fields) -> Request:
    made = Request(name, list(range(10, 10 + prompt)), max_tokens, **fields)
    made.drafter = Says(*guess)
    return made


def generating(*requests: Request, **limits) -> Scheduler:
    """Each has its first token, which is 1."""
    scheduler = Scheduler(config(**limits))
    for each in requests:
        scheduler.add(each)
    while not all(each.num_generated for each in requests):
        batch = scheduler.schedule()
        assert not any(chunk.drafts for chunk in batch.chunks)
        run(scheduler, batch)
    return scheduler


def test_the_tokens_that_are_drawn_stand_up_to_the_first_wrong_guess():
    a = request("a", 6, 7, 8, 9)
    scheduler = generating(a)
    batch = scheduler.schedule()
    assert spans(batch) == [("a", 6, 4)]
    assert batch.chunks[0].drafts == (7, 8, 9)
    events = scheduler.update(batch, [[7, 8, 3, 4]])
    assert [event.token for event in events] == [7, 8, 3]
    assert a.tokens[6:] == [1, 7, 8, 3]
    assert (a.num_computed, a.num_done, a.drafter.told) == (9, 9, [(3, 2)])
    assert spans(scheduler.schedule()) == [("a", 9, 4)]


def test_all_may_stand_and_none():
    chunk = Chunk(request("a", 2), 1, 3, samples=True, drafts=(4, 5))
    for drawn, standing in (([4, 5, 6], [4, 5, 6]), ([3, 5, 6], [3]), ([4], [4]), ([4, 6], [4, 6])):
        assert chunk.verified(drawn) == standing


def test_only_blocks_of_tokens_that_stand_are_found_again():
    a = request("a", 6, *range(20, 26))
    scheduler = generating(a)  # blocks of 4: one is full
    scheduler.update(scheduler.schedule(), [[20, 0, 0, 0, 0, 0, 0]])
    assert a.num_done == 8
    assert scheduler.cached_prefix(Request("b", [*range(10, 16), 1, 20, 5], 1)) == 8
    scheduler.update(scheduler.schedule(), [[20, 21, 22, 0]])
    assert scheduler.cached_prefix(Request("c", [*a.tokens, 0], 1)) == 12
    assert scheduler.cached_prefix(Request("d", [*range(10, 16), 1, 20, *range(20, 26)], 1)) == 8
    scheduler.check()


def test_an_answer_ends_at_its_first_stop_token_among_drafts():
    a = request("a", 4, 7, 8, 9, stop_ids=frozenset({8}))
    scheduler = generating(a)
    events = scheduler.update(scheduler.schedule(), [[7, 8, 9, 9]])
    assert [(e.token, e.finish_reason) for e in events] == [(7, None), (8, FinishReason.STOP)]
    assert scheduler.blocks_held == 0


def test_no_more_is_guessed_than_is_wanted():
    a = request("a", 4, *range(20), max_tokens=4)
    scheduler = generating(a)
    assert spans(scheduler.schedule()) == [("a", 4, 3)]
    b = request("b", 4, *range(20))
    assert spans(generating(b, max_model_len=8).schedule()) == [("b", 4, 3)]


def test_everybody_goes_before_drafts():
    """Twelve tokens: four have one each, and the other eight are shared out to those who guess."""
    asked = [request(name, 2, *range(guesses)) for name, guesses in (("a", 9), ("b", 1), ("c", 9))]
    asked.append(Request("d", [1, 2], 9))
    scheduler = generating(*asked, max_num_batched_tokens=12)
    batch = scheduler.schedule()
    assert [(c.request.id, len(c.drafts)) for c in batch.chunks] == [("a", 2), ("b", 1), ("c", 5), ("d", 0)]


def test_a_limit_of_rows_and_prompts_leave_no_room():
    a, b = request("a", 4, 5, 5, 5), request("b", 4, 5, 5, 5)
    scheduler = generating(a, b, draft_rows=3)
    batch = scheduler.schedule()
    assert [len(chunk.drafts) for chunk in batch.chunks] == [0, 1]
    run(scheduler, batch)
    scheduler.add(request("c", 4))
    batch = scheduler.schedule()
    assert [len(chunk.drafts) for chunk in batch.chunks] == [0, 0, 0]


def test_nobody_is_preempted_for_drafts():
    """Four blocks of 4 tokens, which both have with the next token: guesses are cut to what is in them."""
    a, b = (request(name, 4, *range(7), max_tokens=9) for name in "ab")
    scheduler = generating(a, b, num_blocks=4)
    batch = scheduler.schedule()
    assert [len(chunk.drafts) for chunk in batch.chunks] == [3, 3]
    assert a.drafter.asked == [3]
    assert scheduler.preemptions == 0


def test_a_chunk_takes_no_more_tokens_than_it_has_rows():
    a = request("a", 4, 5, 5)
    scheduler = generating(a)
    batch = scheduler.schedule()
    for wrong in ([], [5] * 4):
        with pytest.raises(ValueError, match="batch 2"):
            scheduler.update(batch, [wrong])
