from __future__ import annotations

import itertools
from collections.abc import Iterable

from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Command, Outputs, Shutdown
from corepipe.engine.process.session import serve
from corepipe.neuron.step import SamplingBatch, StepInputs
from corepipe.neuron.timing.clock import HostClock
from tests.engine.engine_support import VOCAB, deployment, submit
from tests.null_executor import NullExecutor


class Scripted:
    """Gives one list of commands a call, and is gone afterwards; keeps the timeouts of the calls."""

    def __init__(self, script: Iterable[list[Command]]) -> None:
        self._script = list(script)
        self.timeouts: list[float | None] = []

    def receive(self, timeout: float | None) -> list[Command]:
        self.timeouts.append(timeout)
        if not self._script:
            raise EOFError
        return self._script.pop(0)


class Diary(NullExecutor):
    """A driver that records each batch of commands."""

    def __init__(self, diary: list[str]) -> None:
        super().__init__(VOCAB)
        self._diary = diary

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        self._diary.append("batch")
        return super().submit(inputs, sampling)


def run_script(
    script: Iterable[list[Command]], replicas: int = 1
) -> tuple[list[Outputs], list[str], Scripted]:
    diary: list[str] = []
    sent: list[Outputs] = []

    def send(news: Outputs) -> None:
        diary.extend("news" for _ in news.outputs)
        sent.append(news)

    driver = Driver(deployment(replicas, clock=HostClock(), executor=lambda: Diary(diary)))
    inbox = Scripted(script)
    milliseconds = itertools.count()
    serve(driver, inbox, send, lambda: next(milliseconds) * 1e-3)
    return sent, diary, inbox


def test_news_are_sent_after_the_next_batch_has_been_submitted() -> None:
    _, diary, _ = run_script([[submit("a", max_tokens=3)], *[[]] * 3])
    assert diary == ["batch", "batch", "news", "batch", "news", "news"]


def test_it_blocks_only_while_idle() -> None:
    _, _, inbox = run_script([[submit("a", max_tokens=3)], *[[]] * 3])
    assert inbox.timeouts == [None, 0.0, 0.0, 0.0, None]


def test_going_idle_is_told_with_stats_of_every_replica() -> None:
    sent, _, _ = run_script([[submit("a", max_tokens=2), submit("b", max_tokens=2)], *[[]] * 4], replicas=2)
    last = {news.stats.replica: news.stats for news in sent if news.stats is not None}
    assert sorted(last) == [0, 1]
    assert [stats.running for stats in last.values()] == [0, 0]
    assert sum(stats.generation_tokens for stats in last.values()) == 4


def test_stats_do_not_come_with_every_step() -> None:
    sent, diary, _ = run_script([[submit("a", max_tokens=200)], *[[]] * 200])
    told = [news.stats for news in sent if news.stats is not None]
    assert len(told) == 5  # at the start, every 50 steps, and at the end
    assert sum(sum(stats.iteration_tokens) for stats in told) == 3 + 199
    assert diary.count("news") == 200


def test_a_refusal_while_idle_is_told_at_once() -> None:
    sent, _, inbox = run_script([[submit("a", prompt=[VOCAB])]])
    assert [output.error_kind for news in sent for output in news.outputs] == ["invalid"]
    assert inbox.timeouts == [None, None]


def test_shutdown_ends_every_request_and_hears_nothing_more() -> None:
    script: list[list[Command]] = [[submit("a"), submit("b")], [], [Shutdown(), submit("c")]]
    sent, _, inbox = run_script(script)
    ends = [(o.id, o.finish_reason) for news in sent for o in news.outputs if o.finish_reason]
    assert ends == [("a", "abort"), ("b", "abort")]
    assert len(inbox.timeouts) == 3
