"""Workloads: streams of requests for a simulation or for a real server.

A workload is a stream of sessions.  A session is one request, or several turns of one conversation, each sent
when the turn that it follows has been answered: the previous one, or, for an agent that does several things
at once, an earlier one.  Sessions start at given times (open loop), or when one of N users is free (closed
loop). The stream is made as it is read, and depends on its seed alone.

Prompts are described, not spelled out: a chain of segments, where an id stands for a segment's tokens and
everything before them.  Equal ids are equal prefixes; `token_ids` draws the tokens where text is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice, takewhile
from math import inf
from random import Random
from typing import NamedTuple

from corepipe.errors import UserError
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths


class Segment(NamedTuple):
    """Part of a prompt: `tokens` tokens.  Equal ids mean that these and all before them are equal."""

    id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its whole prompt, and the number of tokens in its answer (`answer` is their segment's id).

    think_seconds: time between the end of the turn that it follows and this one, in which users think and
    tools work. after: the number of the turn that it follows (None: the previous one).
    """

    prompt: tuple[Segment, ...]
    output_tokens: int
    answer: int
    think_seconds: float = 0.0
    after: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum([segment.tokens for segment in self.prompt])


@dataclass(frozen=True, slots=True)
class Session:
    """Turns, each after an earlier one.  start: seconds; None: when a user of a closed loop is free.
    adapter: the number of the LoRA adapter that answers, from 0 on; None: none does."""

    start: float | None
    turns: tuple[Turn, ...]
    adapter: int | None = None

    def following(self, turn: int) -> list[int]:
        """Returns the numbers of the turns that wait for the answer to this one."""
        behind = range(turn + 1, len(self.turns))
        return [n for n in behind if (n - 1 if (after := self.turns[n].after) is None else after) == turn]


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of sessions; each call of `sessions()` starts it from the beginning.

    users: number of users of a closed loop, each of whom starts a session `think_seconds` after the last one
    ended; None: an open loop.  In a closed loop no session starts after `duration` seconds (None: no limit);
    the times of an open loop are in the stream.  shares_prefixes: whether any two prompts may begin alike.
    talks: whether a session may have several turns. chained: whether any request waits for the answer to
    another.  requests: their number at most (None: not known).  about: the settings, for reports.
    """

    sessions: Callable[[], Iterator[Session]]
    users: int | None = None
    think_seconds: float = 0.0
    duration: float | None = None
    shares_prefixes: bool = True
    chained: bool = True
    talks: bool = False
    requests: int | None = None
    about: dict[str, object] = field(default_factory=dict)


def with_adapters(workload: Workload, count: int, seed: int) -> Workload:
    """Returns a workload in which each session has one of `count` LoRA adapters, drawn from the seed; it
    shares prefixes with sessions of the same adapter alone."""

    def sessions() -> Iterator[Session]:
        random = Random(f"{seed} adapters")  # noqa: S311
        for session in workload.sessions():
            number = random.randrange(count)
            turns = tuple(_of_adapter(turn, number, count) for turn in session.turns)
            yield Session(session.start, turns, number)

    return replace(workload, sessions=sessions, about={**workload.about, "adapters": count})


def _of_adapter(turn: Turn, number: int, count: int) -> Turn:
    """Returns a turn whose segments have ids of its adapter."""
    prompt = tuple(Segment(one.id * count + number, one.tokens) for one in turn.prompt)
    return replace(turn, prompt=prompt, answer=turn.answer * count + number)


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Prefixes that requests share: each of `levels` is (branches of a node, tokens of each).

    ((1, 512), (8, 256)) is a system prompt of 512 tokens, followed by one of 8 documents of 256.
    """

    levels: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, spec: str) -> PrefixTree:
        """Reads BRANCHESxTOKENS[,...], for example 1x512,8x256.  Raises UserError for anything else."""
        try:
            levels = tuple(tuple(map(int, level.split("x"))) for level in spec.split(","))
        except ValueError:
            levels = ((),)
        if any(len(level) != 2 or min(level) < 1 for level in levels):
            raise UserError(
                f"--prefix-tree {spec}: give BRANCHESxTOKENS of each level, as 1x512,8x256", "prefix_tree"
            )
        return cls(tuple((level[0], level[1]) for level in levels))

    def path(self, random: Random) -> tuple[Segment, ...]:
        """Draws a path from the root to a leaf.  Ids count the nodes level by level and are negative."""
        first, node, segments = 1, 0, []
        width = 1
        for branches, tokens in self.levels:
            node = node * branches + random.randrange(branches)
            width *= branches
            segments.append(Segment(-(first + node), tokens))
            first += width
        return tuple(segments)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A synthetic workload.

    requests: their number (None: no limit; then `duration` must be set).  arrivals: of requests, in an open
    loop; None: a closed loop of `users`.  A session has `turns` turns, each of which adds `input_len` tokens
    to the conversation so far and generates `output_len`; think_seconds lie between them.
    """

    input_len: Lengths
    output_len: Lengths
    requests: int | None = None
    duration: float | None = None
    arrivals: Arrivals | None = None
    users: int | None = None
    turns: int = 1
    think_seconds: float = 0.0
    prefixes: PrefixTree = PrefixTree()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests is None and self.duration in {None, inf}:
            raise UserError("a workload without end: give --requests or a finite --duration", "requests")
        if self.requests is None and self.arrivals is not None and self.arrivals.rate == inf:
            raise UserError("--rate inf sends all at once: give --requests, how many", "requests")
        if (self.arrivals is None) == (self.users is None):
            raise UserError("give --rate for an open loop or --users for a closed one, not both", "rate")

    def workload(self) -> Workload:
        """Returns the workload as a stream of sessions."""
        return Workload(
            self._sessions,
            users=self.users,
            think_seconds=self.think_seconds,
            duration=self.duration,
            shares_prefixes=self.turns > 1 or bool(self.prefixes.levels),
            chained=self.turns > 1 or self.users is not None,
            talks=self.turns > 1,
            requests=self.requests,
            about=self._about(),
        )

    def _sessions(self) -> Iterator[Session]:
        lengths = self.input_len.draw(self._random("input")), self.output_len.draw(self._random("output"))
        prefixes, ids, left = self._random("prefix"), count(), self.requests
        for start in self.starts():
            turns = self.turns if left is None else min(self.turns, left)
            if turns == 0:
                return
            yield Session(
                start, _turns(self.prefixes.path(prefixes), turns, lengths, ids, self.think_seconds)
            )
            left = None if left is None else left - turns

    def starts(self) -> Iterator[float | None]:
        """Yields the seconds at which sessions start, up to `duration`; None: when their user is free."""
        if self.arrivals is None:
            while True:
                yield None
        arrivals = self.arrivals.divided(self.turns)
        end = inf if self.duration is None else self.duration
        yield from takewhile(lambda time: time <= end, arrivals.times(self._random("arrivals")))

    def _random(self, what: str) -> Random:
        """Returns the random numbers of one part: a change of lengths does not move the arrivals."""
        return Random(f"{self.seed} {what}")  # noqa: S311 -- a workload is no secret

    def _about(self) -> dict[str, object]:
        arrivals = self.arrivals
        at_once = arrivals is not None and arrivals.rate == inf  # JSON has no infinity
        return {
            "arrival": "all at once" if at_once else arrivals.kind if arrivals else "closed loop",
            "rate": arrivals.rate if arrivals and not at_once else None,
            "rate_to": arrivals.ramp.to if arrivals and arrivals.ramp else None,
            "burstiness": arrivals.burstiness if arrivals else None,
            "users": self.users,
            "requests": self.requests,
            "duration_seconds": self.duration,
            "input_len": self.input_len.spec,
            "output_len": self.output_len.spec,
            "turns": self.turns,
            "think_seconds": self.think_seconds,
            "prefix_tree": ",".join(f"{branches}x{tokens}" for branches, tokens in self.prefixes.levels),
            "seed": self.seed,
        }


def _turns(
    prefix: tuple[Segment, ...],
    turns: int,
    lengths: tuple[Iterator[int], Iterator[int]],
    ids: Iterator[int],
    think_seconds: float,
) -> tuple[Turn, ...]:
    """Returns the turns of a session: each prompt is the conversation so far and a new message."""
    history, made = prefix, []
    for number in range(turns):
        message = Segment(next(ids), next(lengths[0]))
        answer = Segment(next(ids), next(lengths[1]))
        prompt = (*history, message)
        made.append(Turn(prompt, answer.tokens, answer.id, think_seconds if number else 0.0))
        history = (*prompt, answer)
    return tuple(made)


def token_ids(prompt: tuple[Segment, ...], vocab_size: int, seed: int = 0) -> list[int]:
    """Returns the token ids of a prompt: each segment's tokens are drawn from its id and the seed, one after
    the other."""
    tokens: list[int] = []
    for segment in prompt:
        random = Random(f"{seed} {segment.id}").random  # noqa: S311
        tokens += [int(random() * vocab_size) for _ in range(segment.tokens)]
    return tokens


def first_requests(workload: Workload, most: int) -> list[Turn]:
    """Returns the first requests of the stream, in order of their sessions."""
    return list(islice((turn for session in workload.sessions() for turn in session.turns), most))
