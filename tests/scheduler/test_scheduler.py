from __future__ import annotations

import pytest

from corepipe.scheduler.request import Request, Status
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import config, run, spans


def request(name: str, prompt: int, max_tokens: int = 8, **fields) -> Request:
    return Request(name, [sum(map(ord, name))] * prompt, max_tokens, **fields)


def started(scheduler: Scheduler, *requests: Request) -> None:
    """Adds requests and computes their prompts."""
    for r in requests:
        scheduler.add(r)
    while any(r.num_generated == 0 for r in requests):
        run(scheduler, scheduler.schedule())


def drive(scheduler: Scheduler) -> None:
    while scheduler.has_unfinished():
        run(scheduler, scheduler.schedule())


class TestLimits:
    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (request("a", 0), "prompt token"),
            (request("a", 4, -1), "max_tokens"),
            (request("a", 128), "max_model_len = 128"),
            (request("a", 129, 0), "max_model_len = 128"),
            (request("a", 41, 0), "needs 11 KV blocks; there are num_blocks = 10"),
            (request("a", 51), "max_queued_tokens = 50"),
            (request("a", 30, 12), "needs 11 KV blocks; there are num_blocks = 10"),
        ],
    )
    def test_what_can_never_run_is_refused(self, bad, message):
        scheduler = Scheduler(config(num_blocks=10, max_queued_tokens=50))
        with pytest.raises(ValueError, match=message):
            scheduler.add(bad)
        assert not scheduler.has_unfinished()

    def test_an_id_is_taken_until_its_request_ends(self):
        scheduler = Scheduler(config())
        scheduler.add(request("a", 4))
        with pytest.raises(ValueError, match="'a' has not ended"):
            scheduler.add(request("a", 4))
        scheduler.abort("a")
        scheduler.add(request("a", 4))

    @pytest.mark.parametrize("limit", ["num_blocks", "max_num_seqs", "stages"])
    def test_limits_are_positive(self, limit):
        with pytest.raises(ValueError, match=f"{limit} must be at least 1"):
            config(**{limit: 0})


def of_whole_prompts(**limits) -> Scheduler:
    """For a model that sees a prompt at once, and keeps nothing of it."""
    fixed = {"num_blocks": 0, "prefix_cache": False, "max_model_len": 32}
    return Scheduler(config(**fixed, **limits, whole_prompts=True, keeps_state=False))


class TestRequestsThatGenerateNothing:
    def test_a_prompt_may_be_as_long_as_the_model(self):
        scheduler = Scheduler(config(max_num_batched_tokens=256))
        scheduler.add(request("a", 128, 0))
        assert spans(scheduler.schedule()) == [("a", 0, 128)]


class TestWholePrompts:
    def test_a_prompt_that_does_not_fit_waits_for_the_next_batch(self):
        scheduler = of_whole_prompts(max_num_batched_tokens=40)
        for name, tokens in (("a", 20), ("b", 16), ("c", 8), ("d", 32)):
            scheduler.add(request(name, tokens, 0))
        batches = []
        while scheduler.has_unfinished():
            batch = scheduler.schedule()
            batches.append(spans(batch))
            run(scheduler, batch)
        assert batches == [[("a", 0, 20), ("b", 0, 16)], [("c", 0, 8), ("d", 0, 32)]]

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ({"max_num_batched_tokens": 31}, "holds no whole prompt"),
            ({"keeps_state": True, "num_blocks": 8}, "computes a prompt in parts"),
        ],
    )
    def test_limits_that_cannot_be(self, limits, message):
        fixed = {"num_blocks": 0, "max_model_len": 32, "whole_prompts": True, "keeps_state": False}
        with pytest.raises(ValueError, match=message):
            config(**{**fixed, **limits})


class TestBatches:
    def test_requests_that_blocks_keep_out_have_no_share(self):
        scheduler = Scheduler(config(stages=2, num_blocks=10, prefix_cache=False))
        scheduler.add(request("a", 8))
        scheduler.add(request("b", 8))
        for batch in [scheduler.schedule(), scheduler.schedule()]:
            run(scheduler, batch)
        for name in "cdefgh":
            scheduler.add(request(name, 28))
        assert [spans(scheduler.schedule()) for _ in range(2)] == [[("a", 8, 1)], [("b", 8, 1)]]

    def test_batches_come_back_in_order_with_a_token_for_each_chunk_that_samples(self):
        scheduler = Scheduler(config(max_num_batched_tokens=5, stages=2))
        scheduler.add(request("a", 8))
        first, second = scheduler.schedule(), scheduler.schedule()
        with pytest.raises(ValueError, match="1 is the oldest"):
            scheduler.update(second, [[1]])
        for wrong in ([], [[1]], [[], []]):
            with pytest.raises(ValueError, match="batch 1"):
                scheduler.update(first, wrong)
        scheduler.update(first, [[]])


def preempting() -> tuple[Scheduler, Request, Request]:
    """Four blocks of four tokens; a and b have generated until a's growth has preempted b."""
    scheduler = Scheduler(config(num_blocks=4, prefix_cache=False))
    a, b = request("a", 7, 8), request("b", 7, 8)
    started(scheduler, a, b)
    while b.status is Status.RUNNING:
        run(scheduler, scheduler.schedule())
    return scheduler, a, b


class TestPreemption:
    def test_the_latest_gives_way_and_goes_on_where_it_was(self):
        scheduler, a, b = preempting()
        assert (b.status, b.num_preemptions, b.num_computed, b.block_ids) == (Status.PREEMPTED, 1, 0, [])
        generated = b.num_generated
        assert generated > 0
        while a.status is Status.RUNNING:
            run(scheduler, scheduler.schedule())
        batch = scheduler.schedule()
        assert spans(batch) == [("b", 0, 7 + generated)]
        assert batch.chunks[0].samples
        run(scheduler, batch)
        assert b.num_generated == generated + 1
        assert scheduler.preemptions == 1

    def test_the_lowest_priority_gives_way_even_if_it_came_first(self):
        scheduler = Scheduler(config(num_blocks=4, prefix_cache=False))
        low, high = request("low", 7, 8, priority=1), request("high", 7, 8, arrival=1.0)
        started(scheduler, low)
        started(scheduler, high)
        drive(scheduler)
        assert (low.num_preemptions, high.num_preemptions) == (1, 0)

    def test_blocks_that_a_running_request_lacks_go_to_nobody_new_but_a_higher_priority(self):
        scheduler = Scheduler(config(num_blocks=8, prefix_cache=False, max_num_batched_tokens=13))
        started(scheduler, request("a", 11))
        scheduler.add(request("b", 20, 4))
        batch = scheduler.schedule()
        assert spans(batch) == [("a", 11, 1), ("b", 0, 12)]
        run(scheduler, batch)
        # a takes one of the two blocks left, and the rest of b's prompt needs both.
        scheduler.add(request("c", 1))
        batch = scheduler.schedule()
        assert spans(batch) == [("a", 12, 1)]
        run(scheduler, batch)
        scheduler.add(request("d", 1, priority=-1))
        assert spans(scheduler.schedule()) == [("a", 13, 1), ("d", 0, 1)]

    def test_a_request_waits_for_the_blocks_of_its_whole_prompt(self):
        scheduler = Scheduler(config(num_blocks=4, prefix_cache=False, max_num_batched_tokens=9))
        started(scheduler, request("a", 8))
        scheduler.add(request("b", 12, 4))
        assert spans(scheduler.schedule()) == [("a", 8, 1)]

    def test_cached_blocks_go_before_requests(self):
        scheduler = Scheduler(config(num_blocks=4))
        started(scheduler, request("a", 8, 1))
        assert scheduler.blocks_cached == 2
        started(scheduler, request("b", 14, 2))
        assert (scheduler.blocks_cached, scheduler.preemptions) == (0, 0)


class TestPrefixCache:
    def test_a_second_prompt_starts_after_the_first_ones_blocks(self):
        scheduler = Scheduler(config())
        started(scheduler, request("a", 10, 1))
        again = Request("b", [ord("a")] * 10, 1)
        scheduler.add(again)
        assert spans(scheduler.schedule()) == [("b", 8, 2)]
        assert again.num_cached == 8
        assert (scheduler.prefix_queries, scheduler.prefix_hits) == (20, 8)
        assert scheduler.cached_prefix(again) == 8

    def test_hits_of_a_preempted_request_are_its_own_and_not_counted(self):
        scheduler = Scheduler(config(num_blocks=4))
        a, b = request("a", 7, 8), request("b", 7, 8)
        scheduler.add(a)
        scheduler.add(b)
        drive(scheduler)
        assert scheduler.preemptions > 0
        assert (scheduler.prefix_queries, scheduler.prefix_hits, b.num_cached) == (14, 0, 0)


class TestCheck:
    def test_a_lost_block_is_noticed(self):
        scheduler = Scheduler(config())
        a = request("a", 8)
        started(scheduler, a)
        scheduler.check()
        a.block_ids = a.block_ids[:1]
        with pytest.raises(RuntimeError, match="reference counts"):
            scheduler.check()

    def test_a_waiting_request_holds_nothing(self):
        scheduler = Scheduler(config())
        a = request("a", 8)
        scheduler.add(a)
        a.block_ids = [0]
        with pytest.raises(RuntimeError, match="waiting"):
            scheduler.check()
