"""What a replica has done since it started, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.neuron.timeline import Timeline
from corepipe.scheduler.request import TokenEvent
from corepipe.scheduler.scheduler import Scheduler
from corepipe.serving.lanes import Lane
from corepipe.serving.messages import Stats
from corepipe.serving.runner import StepResult


class Tally:
    """Counts what the scheduler and the timeline do not count themselves."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._steps = 0
        self._host_seconds = 0.0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._iteration_tokens: list[int] = []

    def count(self, result: StepResult, events: Sequence[TokenEvent]) -> None:
        """A batch is complete.  A prompt counts when its first token is there."""
        self._steps += 1
        self._host_seconds += result.output.seconds
        self._iteration_tokens.append(result.step.shape.rows)
        for event in events:
            if event.token is not None:
                self._generation_tokens += 1
                if event.request.num_generated == 1:
                    self._prompt_tokens += len(event.request.prompt)

    def stats(self, lane: Lane, scheduler: Scheduler) -> Stats:
        """All of it; `iteration_tokens` starts anew."""
        iteration_tokens, self._iteration_tokens = self._iteration_tokens, []
        return Stats(
            replica=lane.number,
            running=scheduler.running,
            waiting=scheduler.waiting,
            waiting_tokens=scheduler.waiting_tokens,
            blocks_total=scheduler.blocks_total,
            blocks_held=scheduler.blocks_held,
            blocks_cached=scheduler.blocks_cached,
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            steps=self._steps,
            host_busy_seconds=self._host_seconds,
            device_busy_seconds=self._timeline.work_seconds,
            device_now_seconds=lane.engine.device.now,
            late_steps=lane.late_steps,
            core_busy_seconds=list(self._timeline.busy_seconds),
            iteration_tokens=iteration_tokens,
        )
