"""The counts of a replica since it started, and its present state."""

from __future__ import annotations

from collections import Counter

from corepipe.engine.loop.replica import Completed, Replica
from corepipe.engine.messages import StageWork, Stats, StepPace
from corepipe.neuron.timing.activity import Activity
from corepipe.neuron.timing.clock import LATE_SECONDS
from corepipe.scheduler.request import Request


class ReplicaStats:
    """Counts what the scheduler and the timeline do not count themselves.

    encodes: nothing is generated, and the rows that the device pads to its graphs are counted.
    """

    def __init__(self, replica: Replica, *, encodes: bool = False) -> None:
        self._encodes = encodes
        self._padded_tokens = 0
        self._replica = replica
        self._steps = 0
        self._failures: Counter[str] = Counter()
        self._host_seconds = 0.0
        self._prompt_tokens = 0
        self._prompt_tokens_cached = 0
        self._generation_tokens = 0
        self._iteration_tokens: list[int] = []
        self._step_seconds: list[tuple[float, float]] = []
        self._compile_seconds: list[float] = []
        self._mask_seconds: list[float] = []
        self._activity = Activity(replica.timeline.cost)
        self._last_due = 0.0
        self._late_steps = 0
        self._paces: list[StepPace] = []

    def count(self, batch: Completed, behind: float | None) -> None:
        """Counts a batch that is complete, so many host seconds late where the host has a pace to keep.

        A prompt counts with its first token, or with its other result.
        """
        timing, result = batch.timing, batch.result
        self._steps += 1
        self._failures.update(failure.kind for failure in batch.failures)
        self._host_seconds += result.output.seconds
        self._iteration_tokens.append(result.step.shape.rows)
        self._step_seconds.append((timing.ready_at - timing.starts_at, timing.ready_at - timing.submitted_at))
        self._mask_seconds += result.step.mask_seconds
        self._activity.add(result.step.shape, sum(end - start for start, end in timing.stages))
        if behind is not None:
            self._keep_pace(batch, behind)
        for event in batch.events:
            if event.token is not None:
                self._generation_tokens += 1
                if event.request.num_generated == 1:
                    self._count_prompt(event.request)
            elif event.finish_reason is not None:
                self._count_prompt(event.request)
        if self._encodes:
            shape = result.step.shape
            self._padded_tokens += self._replica.timeline.cost.padded(shape).rows - shape.rows

    def _count_prompt(self, request: Request) -> None:
        self._prompt_tokens += len(request.prompt)
        self._prompt_tokens_cached += request.num_cached

    def compiled(self, seconds: float) -> None:
        """Counts the compilation of a grammar, of a request of this replica."""
        self._compile_seconds.append(seconds)

    def _keep_pace(self, batch: Completed, behind: float) -> None:
        began = max(self._last_due, batch.timing.submitted_at)
        self._late_steps += behind > LATE_SECONDS
        self._paces.append(StepPace(began - self._last_due, batch.due - began, behind))
        self._last_due = batch.due

    def forget(self) -> None:
        """Drops the lists that grow with each batch until they are read, for callers that do not read
        them."""
        self._iteration_tokens.clear()
        self._step_seconds.clear()
        self._paces.clear()
        self._compile_seconds.clear()
        self._mask_seconds.clear()

    def stats(self) -> Stats:
        """Returns all counts; lists of one value a batch, grammar or mask start anew."""
        iteration_tokens, self._iteration_tokens = self._iteration_tokens, []
        step_seconds, self._step_seconds = self._step_seconds, []
        paces, self._paces = self._paces, []
        compile_seconds, self._compile_seconds = self._compile_seconds, []
        mask_seconds, self._mask_seconds = self._mask_seconds, []
        scheduler, timeline = self._replica.scheduler, self._replica.timeline
        busy = timeline.busy_seconds
        return Stats(
            replica=self._replica.number,
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
            prompt_tokens_cached=self._prompt_tokens_cached,
            generation_tokens=self._generation_tokens,
            steps=self._steps,
            host_busy_seconds=self._host_seconds,
            device_busy_seconds=timeline.work_seconds,
            device_now_seconds=self._replica.device_now,
            late_steps=self._late_steps,
            core_busy_seconds=list(busy),
            iteration_tokens=iteration_tokens,
            work=[
                StageWork(list(work.engines), work.flops, work.memory_bytes)
                for work in self._activity.look(busy)
            ],
            step_seconds=step_seconds,
            overflows=self._failures["overflow"],
            constraint_failures=self._failures["constraint"] + self._failures["contradiction"],
            held=scheduler.held,
            paces=paces,
            compile_seconds=compile_seconds,
            mask_seconds=mask_seconds,
            padded_tokens=self._padded_tokens,
            drafts=scheduler.drafted.drafts,
            draft_tokens=scheduler.drafted.tokens,
            accepted_tokens=scheduler.drafted.accepted,
            accepted_per_position=scheduler.drafted.accepted_per_position[:],
        )
