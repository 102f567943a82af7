"""The distribution of requests over a pipeline: generation in the number of batches that the pipeline chose,
and prompts wherever that leaves a stage free."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from corepipe.scheduler.next_batch import policy
from corepipe.scheduler.request import Batch, Request
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import Fixed, config, run, spans

POLICIES = ["mixed", "segregated"]


class Pipe:
    """A pipeline in which each batch lands when no other can start."""

    def __init__(self, policy_name: str, stages: int, wanted: int, **limits: int) -> None:
        roomy = {"num_blocks": 4096, "max_num_seqs": 32, "max_model_len": 2048, "stages": stages, **limits}
        self.scheduler = Scheduler(config(**roomy), policy(policy_name), Fixed(wanted, stages))
        self.flights: deque[Batch] = deque()

    def add(self, name: str, prompt: int = 4, max_tokens: int = 1000) -> Request:
        request = Request(name, [1] * prompt, max_tokens)
        self.scheduler.add(request)
        return request

    def launch(self) -> Iterator[Batch]:
        """Yields the batches that can be scheduled now."""
        while (batch := self.scheduler.schedule()) is not None:
            self.flights.append(batch)
            yield batch

    def turn(self) -> list[Batch]:
        """The oldest batch lands, and others follow; those."""
        if self.flights:
            run(self.scheduler, self.flights.popleft())
        return list(self.launch())

    def settle(self, requests: list[Request]) -> None:
        """Until all of them generate, and have gone round once more."""
        while any(request.num_generated < 2 for request in requests):
            self.turn()
        for _ in range(8):
            self.turn()

    @property
    def sizes(self) -> list[int]:
        return sorted(len(batch.chunks) for batch in self.flights)


@pytest.mark.parametrize("policy_name", POLICIES)
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
@pytest.mark.parametrize("requests", [1, 2, 5, 8, 10, 13])
def test_those_who_generate_go_in_even_batches(policy_name: str, stages: int, requests: int) -> None:
    for wanted in range(1, stages + 2):
        pipe = Pipe(policy_name, stages, wanted)
        pipe.settle([pipe.add(f"r{number}") for number in range(requests)])
        batches = min(wanted, requests)
        assert len(pipe.sizes) == batches
        assert pipe.sizes[-1] == -(-requests // batches)
        assert sum(pipe.sizes) == requests


@pytest.mark.parametrize("policy_name", POLICIES)
@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_the_chunks_of_a_lone_prompt_follow_each_other(policy_name: str, wanted: int) -> None:
    pipe = Pipe(policy_name, 4, wanted, max_num_batched_tokens=8)
    pipe.add("long", prompt=80)
    batches = list(pipe.launch())
    assert [spans(batch) for batch in batches] == [[("long", 8 * n, 8)] for n in range(4)]
    while pipe.flights[-1].chunks[0].start < 72:
        assert len(pipe.turn()) == 1


@pytest.mark.parametrize("policy_name", POLICIES)
@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_prompts_fill_the_stages_that_those_who_generate_leave(policy_name: str, wanted: int) -> None:
    pipe = Pipe(policy_name, 4, wanted, max_num_batched_tokens=8)
    busy = [pipe.add(f"r{number}") for number in range(4)]
    pipe.settle(busy)
    pipe.add("long", prompt=400)
    for _ in range(8):
        pipe.turn()
        assert len(pipe.flights) == 4


@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_prompts_keep_nobody_from_generating(wanted: int) -> None:
    """However many prompts come: whoever generates has a token in each round of the pipe."""
    pipe = Pipe("mixed", 4, wanted, max_num_batched_tokens=8)
    busy = [pipe.add(f"r{number}") for number in range(4)]
    pipe.settle(busy)
    before = [request.num_generated for request in busy]
    rounds = 30
    for number in range(rounds * 4):
        if pipe.scheduler.waiting < 2:
            pipe.add(f"long{number}", prompt=60, max_tokens=1)
        pipe.turn()
    gained = [request.num_generated - tokens for request, tokens in zip(busy, before, strict=True)]
    assert min(gained) >= rounds - 2


def test_one_stage_has_one_batch_under_way() -> None:
    pipe = Pipe("mixed", 1, 3)
    for name in "ab":
        pipe.add(name)
    assert [spans(batch) for batch in pipe.launch()] == [[("a", 0, 4), ("b", 0, 4)]]


def test_what_was_decided_holds_until_others_run() -> None:
    asked: list[tuple[int, int]] = []

    class Asked(Fixed):
        def generating_batches(self, sequences: int, tokens: int) -> int:
            asked.append((sequences, tokens))
            return super().generating_batches(sequences, tokens)

    limits = config(stages=2, max_model_len=1000, num_blocks=1000)
    scheduler = Scheduler(limits, policy("mixed"), Asked(2, 2))
    for name in "ab":
        scheduler.add(Request(name, [1] * 4, 100))
    flights = deque(batch for batch in (scheduler.schedule(), scheduler.schedule()) if batch)
    asked.clear()
    for _ in range(40):
        run(scheduler, flights.popleft())
        batch = scheduler.schedule()
        assert batch is not None
        flights.append(batch)
    assert len(asked) <= 1, "the first time after both have started"
    scheduler.add(Request("c", [1] * 4, 100))
    run(scheduler, flights.popleft())
    scheduler.schedule()
    assert asked[-1][0] == 3
