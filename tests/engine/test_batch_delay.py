"""`--max-batch-delay`: a replica waits for more requests, in the time of its clock."""

from __future__ import annotations

from corepipe.engine.messages import Abort
from tests.engine.clocked import Clocked
from tests.engine.engine_support import encoder, submit

DELAY = 0.05
STEP = 0.01


class Delayed(Clocked):
    """An encoder whose batches take STEP seconds, and wait."""

    def __init__(self, delay: float = DELAY, *, paced: bool = True, **limits: int) -> None:
        super().__init__(lambda clock: encoder(delay=delay, clock=clock, **limits), paced=paced)

    def add(self, at: float, *names: str, tokens: int = 3) -> None:
        self.submit(at, *[submit(name, tokens, 0) for name in names])

    def when(self) -> dict[str, float]:
        self.until(10.0)
        assert not self.driver.busy
        return {name: round(at, 4) for name, (at, _) in self.told.items()}

    def batches(self) -> int:
        return self.driver.stats()[0].steps


def test_who_comes_meanwhile_shares_the_batch() -> None:
    clocked = Delayed()
    clocked.add(1.0, "a")
    clocked.add(1.03, "b")
    clocked.add(1.06, "c")
    assert clocked.when() == {"a": 1.06, "b": 1.06, "c": 1.12}
    assert clocked.batches() == 2


def test_a_full_batch_waits_for_nobody() -> None:
    clocked = Delayed(max_num_seqs=2)
    clocked.add(1.0, "a")
    clocked.add(1.02, "b")
    assert clocked.when() == {"a": 1.03, "b": 1.03}


def test_a_batch_is_full_of_tokens_too() -> None:
    clocked = Delayed()
    clocked.add(1.0, "a", tokens=40)
    clocked.add(1.01, "b", tokens=40)  # a batch holds 64
    assert clocked.when() == {"a": 1.02, "b": 1.07}


def test_one_that_waited_while_another_batch_ran_waits_no_longer_than_that() -> None:
    clocked = Delayed(delay=0.004)
    clocked.add(1.0, "a")
    clocked.add(1.005, "b")
    clocked.add(1.013, "c")
    assert clocked.when() == {"a": 1.014, "b": 1.024, "c": 1.024}


def test_the_device_knows_of_the_wait() -> None:
    for paced in (True, False):
        clocked = Delayed(paced=paced)
        clocked.add(1.0, "a")
        clocked.add(1.02, "b")
        clocked.until(2.0)
        waits = {name: out.device.time_in_queue_ms for name, (_, out) in clocked.told.items() if out.device}
        assert round(waits["a"], 6) == DELAY * 1e3, paced


def test_nobody_waits_for_one_that_has_gone() -> None:
    clocked = Delayed()
    clocked.add(1.0, "a")
    clocked.add(1.02, "b")
    clocked.driver.handle(Abort(["a"]))
    assert clocked.when()["b"] == 1.08


def test_what_a_lost_engine_had_does_not_wait_again() -> None:
    clocked = Delayed()
    clocked.until(1.0)
    clocked.driver.handle(submit("a", 3, 0, replay=True))
    clocked.driver.submit()
    assert clocked.when() == {"a": 1.01}


def test_the_hosts_time_counts_where_it_sets_the_pace() -> None:
    clocked = Delayed(paced=False)
    clocked.add(1.0, "a")
    clocked.add(1.03, "b")
    assert clocked.when() == {"a": 1.05, "b": 1.05}
    assert clocked.batches() == 1
