"""The queues of a NeuronCore: when each instruction of a kernel starts and ends.

Every instruction goes to the queue of its engine and starts when the engine is free, its operands are there
and nobody needs what it overwrites.  A transfer occupies a queue of loads or of stores while it is issued,
then a share of the DMA engines.  Turns that the recorder left out repeat the last ones that it kept, queue
by queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.instructions import Engine, Event, Instruction, LoopEnd, Skip, Turn
from corepipe.nki.timing.costs import DMA_END, DMA_START, TABLE_LOAD, Costs, table
from corepipe.nki.timing.queues_lanes import Lane
from corepipe.nki.timing.queues_memory import Block, Buffers, Part, Rotation, Uses
from corepipe.nki.timing.queues_room import Key
from corepipe.nki.timing.times import Gap, Span


@dataclass(slots=True)
class Sums:
    """Sums that grow with every instruction, by key: an engine's time and count, a line's time, bytes,
    waits."""

    values: dict[object, float] = field(default_factory=dict)

    def add(self, key: object, amount: float) -> None:
        self.values[key] = self.values.get(key, 0.0) + amount

    def repeat(self, before: Mapping[object, float], times: float) -> None:
        """Adds what came since `before`, so many times."""
        for key, value in self.values.items():
            self.values[key] = value + times * (value - before.get(key, 0.0))


@dataclass(slots=True, eq=False)
class Mark:
    """The state at the beginning of a turn: the end so far, when each queue is free, the sums, memory taken,
    and how many parts of buffers were used so far."""

    end: float
    free: dict[Lane, float]
    sums: dict[object, float]
    taken: dict[Rotation, tuple[int, int]]
    used: int


class Queues:
    """A simulation of the engines of one NeuronCore.  `run` takes the stream; the rest are its results.

    ends: the blocks that each instruction, by its id, is the last to use.
    sums: nanoseconds by `("busy", engine)`, by a line's site, and by `("wait", engine, cause)`; numbers of
    instructions by `("count", engine)`.
    """

    def __init__(
        self,
        costs: Costs,
        buffers: Buffers,
        *,
        reorders: bool,
        ends: Mapping[int, Sequence[tuple[Buffer, Key | None]]] | None = None,
    ) -> None:
        self._ends = ends or {}
        self._costs, self._core, self._buffers = costs, costs.core, buffers
        self._lanes = {engine: Lane(reorders or engine is Engine.DMA) for engine in Engine}
        self._issue = {True: Lane(reorders=True), False: Lane(reorders=True)}
        self._table = ""
        self._marks: dict[int, list[Mark]] = {}
        self._used: list[tuple[Block, Part]] = []
        self._end = 0.0
        self.sums = Sums()
        self.spans: list[Span] = []
        self.gaps: list[Gap] = []

    @property
    def seconds(self) -> float:
        """The end of the last instruction."""
        return self._end * 1e-9

    def run(self, stream: Iterable[Event]) -> None:
        """Simulates the events of a stream in their order."""
        for event in stream:
            if isinstance(event, Instruction):
                self._execute(event)
            elif isinstance(event, Turn):
                if event.loop.skipped:
                    self._marks.setdefault(event.loop.number, []).append(self._mark())
            elif isinstance(event, Skip):
                self._skip(self._marks[event.loop.number], event)
            elif isinstance(event, LoopEnd):
                self._marks.pop(event.loop.number, None)
                if not self._marks:
                    self._used.clear()

    def _mark(self) -> Mark:
        return Mark(
            self._end,
            {lane: lane.free for lane in self._all_lanes()},
            dict(self.sums.values),
            self._buffers.state(),
            len(self._used),
        )

    def _all_lanes(self) -> Iterator[Lane]:
        yield from self._lanes.values()
        yield from self._issue.values()

    def _skip(self, marks: Sequence[Mark], skip: Skip) -> None:
        """Repeats the mean of the last two turns: on each queue, and in memory that is used in turn.

        A queue that ran ahead until it had to wait moved on by more than it will, but no queue is faster than
        the end of all; one that moves too little waits in the turn that follows.
        """
        before, last = marks[-2:] if len(marks) > 1 else (marks[-1], marks[-1])
        times = skip.turns / (2 if len(marks) > 1 else 1)
        steady = self._end - before.end
        if len(marks) > 2:  # a turn in which queues catch up is none that repeats
            steady = min(steady, last.end - marks[-3].end)
        end = (self._end + times * steady) * 1e-9
        self.gaps.append(Gap(skip.turns, self._end * 1e-9, end, skip.loop.site))
        passed = {}
        for engine, lane in self._lanes.items():
            key = ("busy", engine)
            busy = self.sums.values.get(key, 0.0) - before.sums.get(key, 0.0)
            pace = min(lane.free - before.free[lane], max(busy, steady))
            passed[engine] = lane.repeat(times * busy, times * pace, last.free[lane])
        for lane in self._issue.values():
            lane.free += times * min(lane.free - before.free[lane], steady)
        self.sums.repeat(before.sums, times)
        earlier, later = self._used[before.used : last.used], self._used[last.used :]
        for part in {part for _, part in earlier}.intersection(part for _, part in later):
            part.shift(passed)  # sums and states, which every turn uses
        for block in {block for block, _ in later if block.followers}:
            block.follow(passed)
        self._buffers.repeat(before.taken, times, passed, before.end)

    # One instruction

    def _execute(self, instruction: Instruction) -> None:
        uses = self._buffers.uses(instruction)
        if Engine.DMA in instruction.engines:
            self._transfer(instruction, uses)
            return
        choices = self._choices(instruction, uses)
        end, at, engine, interval, cause = min(choices, key=lambda choice: choice[0])
        lane = self._lanes[engine]
        if cause and at > lane.free:
            self.sums.add(("wait", engine, cause), at - lane.free)
        lane.take(at, interval)
        if engine is Engine.SCALAR:
            self._table = table(instruction) or self._table
        self._finish(instruction, uses, engine, at + interval, end)
        self._note(instruction, engine, at, interval, end)

    def _choices(
        self, instruction: Instruction, uses: Uses
    ) -> Iterable[tuple[float, float, Engine, float, str]]:
        """Yields for each engine that may execute it the end, start, engine, interval and what it waits for.

        AccelOpt's counters: the compiler does not choose GpSimd, however busy VectorE is.
        """
        engines = instruction.engines
        for engine in engines:
            if engine is Engine.GPSIMD and len(engines) > 1:
                continue
            interval, latency = self._costs.of(instruction, engine)
            if engine is Engine.SCALAR and table(instruction) not in {"", self._table}:
                interval, latency = interval + TABLE_LOAD, latency + TABLE_LOAD
            ready, cause = uses.ready(engine)
            at = self._lanes[engine].start(ready, interval)
            yield at + latency, at, engine, interval, cause

    def _transfer(self, instruction: Instruction, uses: Uses) -> None:
        """Queues a transfer: its issue, its start, and its share of the DMA engines."""
        load = any(r.buffer.space is not Space.HBM for r in instruction.writes)
        issue, length = self._issue[load], self._core.issue[0 if load else 1]
        ready, cause = uses.ready(Engine.DMA)
        issued = issue.start(ready, length)
        issue.take(issued, length)
        transfer = self._costs.transfer(instruction)
        lane = self._lanes[Engine.DMA]
        free = lane.free
        at, done = lane.fill(issued + DMA_START, transfer.work)
        if at > free:
            self.sums.add(("wait", Engine.DMA, cause), at - free)
        done = max(done, at + transfer.alone)
        self._finish(instruction, uses, Engine.DMA, done, done + DMA_END)
        self._note(instruction, Engine.DMA, at, transfer.work, done + DMA_END)

    def _finish(self, instruction: Instruction, uses: Uses, engine: Engine, free: float, end: float) -> None:
        uses.done(engine, free, end)
        for buffer, key in self._ends.get(id(instruction), ()):
            self._buffers.leave(buffer, key)
        if instruction.details.get("kind") == "spilled" and self._ends:
            for region in instruction.reads:
                self._buffers.leave(
                    region.buffer, tuple(low for low, _ in region.box[: region.buffer.blocks])
                )
        if self._marks:
            self._used.extend((block, part) for _, block, part in (*uses.reads, *uses.writes))

    def _note(self, instruction: Instruction, engine: Engine, at: float, busy: float, end: float) -> None:
        """Adds an instruction to the sums and to the spans."""
        self._end = max(self._end, end)
        add = self.sums.add
        add(("busy", engine), busy)
        add(("count", engine), 1.0)
        add(instruction.site, busy)
        self.spans.append(Span(instruction.op, engine, 0, at * 1e-9, (at + busy) * 1e-9, instruction.site))
