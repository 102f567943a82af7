"""The next batch: how large it may be, in which order requests join it, and the chunks that it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from typing import NamedTuple, Protocol

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.request import BACKGROUND_TOKENS, Chunk, Rank, Request, Status
from corepipe.scheduler.running import Running, WaitingQueue


class Pipeline(Protocol):
    """Chooses in how many batches work passes through a pipeline soonest."""

    def generating_batches(self, sequences: int, tokens: int) -> int:
        """Returns the number of batches for `sequences` that generate, with `tokens` tokens in all."""

    def batches_with_prompts(self, sequences: int, tokens: int, prompt: int) -> int:
        """Returns how many batches to have in flight where such sequences generate, or none, and a batch
        could take `prompt` tokens of prompts; no fewer than without prompts."""


@dataclass(frozen=True, slots=True)
class OneForEachStage:
    """A pipeline whose number of stages is all that is known of it."""

    stages: int

    def generating_batches(self, sequences: int, _tokens: int) -> int:
        return min(sequences, self.stages)

    def batches_with_prompts(self, _sequences: int, _tokens: int, _prompt: int) -> int:
        return self.stages


class BatchShare(NamedTuple):
    """The limits of the next batch.

    seats: its sequences at most, so that all batches have about the same size.  kept: how many of the seats
    are kept for waiting requests, which might otherwise wait for as long as others run.  prompts_only: all
    requests that generate are in flight, and the stages have room for prompts alone.
    """

    seats: int
    kept: int
    prompts_only: bool


class Sharing:
    """Distributes the requests of one replica over batches: those that run, and those that may join."""

    def __init__(
        self, config: SchedulerConfig, running: Running, queue: WaitingQueue, kv: KVCache, pipeline: Pipeline
    ) -> None:
        self._config = config
        self._running = running
        self._queue = queue
        self._kv = kv
        self._pipeline = pipeline
        self._situation = (-1, 0)
        self._batches = 1

    def share(self, in_flight: int, generating: int) -> BatchShare | None:
        """Returns the limits of the next batch, where `in_flight` others are in flight, `generating` of them
        with requests that generate; None where these are enough."""
        if self._config.stages == 1:
            return None if in_flight else BatchShare(self._config.max_num_seqs, 0, prompts_only=False)
        coming, tokens = self._admissible()
        self._think(coming, tokens)
        if in_flight >= self._batches and in_flight >= self._most_with_prompts(tokens):
            return None
        seats = -(-(len(self._running) + coming) // self._batches)
        missing = self._batches - in_flight
        if missing > 0:
            idle = sum([r.num_computed < r.num_tokens for r in self._running]) + coming
            seats = min(seats, -(-idle // missing))
        return BatchShare(seats, -(-coming // self._batches), prompts_only=generating >= self._batches)

    def _think(self, coming: int, tokens: int) -> None:
        """Chooses the number of batches for the running requests and `coming` others with `tokens` tokens.

        It does so only when the set of requests has changed, not at each token: what is best changes slowly
        with the context, and each change costs a round in which the batches are of unequal size.
        """
        situation = (self._running.changes, coming)
        sequences = len(self._running) + coming
        if self._situation != situation and sequences:
            known = sum(request.num_tokens for request in self._running) + tokens
            self._batches = self._pipeline.generating_batches(sequences, known)
            self._situation = situation

    def _most_with_prompts(self, coming: int) -> int:
        """Returns how many batches to have in flight for the prompts of running requests and `coming` tokens
        of requests that may join; 0 where there are no prompts."""
        running = self._running
        prompts = [r.num_tokens - r.num_computed for r in running if r.num_tokens == r.num_prompt]
        waiting = coming + sum(prompts)
        if waiting == 0:
            return 0
        generating = [r.num_tokens for r in running if r.num_tokens > r.num_prompt]
        most = min(waiting, self._config.max_num_batched_tokens)
        return self._pipeline.batches_with_prompts(len(generating), sum(generating), most)

    def _admissible(self) -> tuple[int, int]:
        """Returns how many waiting requests seats and blocks would admit now, if none found a cached prefix,
        and their tokens."""
        seats = self._running.seats
        if seats == 0 or len(self._queue) == 0:
            return 0, 0
        blocks, count, tokens = self._kv.pool.available, 0, 0
        for request in self._queue:
            blocks -= self._kv.blocks_for(request.num_tokens)
            if count == seats or blocks < 0:
                break
            count += 1
            tokens += request.num_tokens
        return count, tokens


class BatchBuilder(Protocol):
    """The actions of a policy on the next batch.  Nothing is added where a limit or the blocks forbid it."""

    def joining(self) -> int:
        """Returns how many waiting requests have a seat and fit whole into the batch."""

    def ready(self) -> Sequence[Request]:
        """Returns the running requests that have known tokens to compute: by priority, and among equals the
        one first that was scheduled longest ago."""

    def run(self, request: Request) -> bool:
        """Adds the next chunk of a running request; returns whether it was added.

        Until `admit` has failed, some seats may be kept from requests that generate.
        """

    def admit(self) -> bool:
        """Adds the first chunk of the head of the queue; returns whether it was added."""


Policy = Callable[[BatchBuilder], None]

WAVE_SHARE, WAVE_TOKENS = 0.3, 20
"""Defaults of --waiting-served-ratio and --max-waiting-tokens of TGI's launcher, as it documents them."""


def mixed(batch: BatchBuilder) -> None:
    """Adds running requests first, then waiting ones, as vLLM does; prompts share a batch with generation."""
    seatless = [request for request in batch.ready() if not batch.run(request)]
    while batch.admit():
        pass
    for request in seatless:
        batch.run(request)


def segregated(batch: BatchBuilder) -> None:
    """Adds one prompt alone (NxDI's ctx_batch_size = 1), else all that generate, as Neuron's serving stack
    does; prompts go first, long ones in segments."""
    ready = batch.ready()
    generating = [request for request in ready if request.generates]
    prompts = () if len(generating) == len(ready) else [r for r in ready if not r.generates]
    if any(batch.run(request) for request in prompts) or batch.admit():
        return
    for request in generating:
        batch.run(request)


def waves(batch: BatchBuilder) -> None:
    """Adds whole prompts, as many as wait and fit, else all that generate.  Requests join when WAVE_SHARE as
    many can as generate, or WAVE_TOKENS tokens after the last ones: as TGI's router lets them."""
    ready = batch.ready()
    generating = [request for request in ready if request.generates]
    joined = [batch.run(request) for request in ready if not request.generates]
    newest = min((request.num_generated for request in generating), default=WAVE_TOKENS)
    joining = batch.joining()
    if newest >= WAVE_TOKENS or joining >= int(WAVE_SHARE * len(generating)):
        joined += [batch.admit() for _ in range(max(1, joining))]
    if not any(joined):
        for request in generating:
            batch.run(request)


def policy(name: str) -> Policy:
    """Returns the policy of this name.  Raises ValueError for an unknown name."""
    policies: dict[str, Policy] = {"mixed": mixed, "segregated": segregated, "waves": waves}
    if name not in policies:
        raise ValueError(f"no batch policy is called {name!r}; there are {', '.join(policies)}")
    return policies[name]


class BatchDrafter(Protocol):
    """Drafts tokens for several requests in one call: for those whose own Drafter proposes none."""

    def depth(self, request: Request, most: int) -> int:
        """Returns how many draft tokens it would propose for the request, at most `most`; 0: none."""

    def propose(self, asked: Sequence[tuple[Request, int]]) -> Sequence[Sequence[int]]:
        """Returns the draft tokens of each (request, most), at most `most` of them; each request holds the
        blocks for them."""


class NextBatch:
    """Builds a batch; implements `policy.BatchBuilder`.

    The seats that its share keeps are for prompts and for requests with a higher priority than the head of
    the queue alone, as long as a request in the queue may start.  background: all requests that have not
    ended are in the background, which otherwise has to wait.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        running: Running,
        queue: WaitingQueue,
        kv: KVCache,
        share: BatchShare,
        *,
        background: bool,
    ) -> None:
        self._config = config
        self._running = running
        self._queue = queue
        self._kv = kv
        self._background = background
        self._tokens = config.max_num_batched_tokens
        if background and not config.whole_prompts:
            self._tokens = min(self._tokens, BACKGROUND_TOKENS)
        self._span = config.state_span
        self._seats = share.seats
        self._prompts_only = share.prompts_only
        head = queue.peek()
        self._kept, self._kept_for = (0, 0) if head is None else (share.kept, head.priority)
        self._short: Rank | None = None
        self._admitted: set[Request] = set()
        self.chunks: list[Chunk] = []
        self._draftable: list[Chunk] = []
        self.generates = False

    def joining(self) -> int:
        tokens = accumulate(request.num_tokens for request in self._queue)
        return sum(1 for _ in takewhile(self._tokens.__ge__, islice(tokens, self._running.seats)))

    def ready(self) -> Sequence[Request]:
        ready = [r for r in self._running if r.num_computed < r.num_tokens]
        while ready and not self._background and ready[-1].in_background:
            ready.pop()
        return ready

    def run(self, request: Request) -> bool:
        if self._tokens == 0 or self._seats == 0:
            return False
        known = request.num_tokens
        generates = request.num_computed == known - 1 and known > request.num_prompt  # without a call
        if generates and (
            self._prompts_only or (self._seats <= self._kept and request.priority >= self._kept_for)
        ):
            return False
        if request in self._admitted:  # preempted for another chunk of this batch, and back in it already
            return False
        ran = self._run(request)
        self.generates |= ran and generates
        return ran

    def admit(self) -> bool:
        waits = self._config.whole_prompts and self._is_too_long()
        if self._tokens > 0 and self._seats > 0 and not waits and not self._is_held_back():
            request = self._running.admit(self._short)
            if request is not None and self._run(request):
                self._admitted.add(request)
                return True
        self._kept = 0
        return False

    def _is_held_back(self) -> bool:
        """Returns whether the head of the queue is in the background, and others are not."""
        head = self._queue.peek()
        return head is not None and head.in_background and not self._background

    def _is_too_long(self) -> bool:
        """Returns whether the head of the queue does not fit whole into what is left of the batch."""
        head = self._queue.peek()
        return head is not None and head.num_tokens > self._tokens

    def _run(self, request: Request) -> bool:
        if request.status is not Status.RUNNING:  # preempted for another chunk of this batch
            return False
        start, known = request.num_computed, request.num_tokens
        end = known if known - start <= self._tokens else start + self._tokens
        if self._span is not None:  # the state there may stay
            end = min(end, (start // self._span + 1) * self._span)
        if end > request.room and not self._running.reserve(request, end):
            self._short = self._short or request.rank
            return False
        request.num_computed = end
        count = end - start
        chunk = Chunk(request, start, count, end == known)
        self.chunks.append(chunk)
        if request.drafter is not None:
            self._draftable.append(chunk)
        self._tokens -= count
        self._seats -= 1
        return True

    def draft(self, together: BatchDrafter | None = None) -> None:
        """Distributes the tokens that the batch has left as draft tokens; `together` drafts for requests
        whose own drafter proposes none.  A batch with prompts gets no drafts: its time is that of its tokens.
        """
        if not self._draftable or not all(c.count == 1 and c.request.num_generated for c in self.chunks):
            return
        rows = self._config.draft_rows
        left = self._tokens if rows is None else min(self._tokens, rows - len(self.chunks))
        waiting: list[tuple[Chunk, int]] = []
        for number, chunk in enumerate(self._draftable):
            request = chunk.request
            most = self._most_drafts(request, left // (len(self._draftable) - number))
            if most <= 0 or request.drafter is None:
                continue
            if drafts := request.drafter.propose(request, most):
                left -= len(drafts)
                self._add_drafts(chunk, drafts)
            elif together is not None and (wanted := together.depth(request, most)):
                left -= wanted
                self._make_room(request, wanted)
                waiting.append((chunk, wanted))
        if together is not None and waiting:
            asked = [(chunk.request, wanted) for chunk, wanted in waiting]
            for (chunk, _), drafts in zip(waiting, together.propose(asked), strict=True):
                self._add_drafts(chunk, drafts)

    def _most_drafts(self, request: Request, most: int) -> int:
        """Returns how many draft tokens a request may have, at most `most`.  No request is preempted for
        their blocks, and the token after the last draft must still be within the request's limits."""
        known = request.num_tokens
        most = min(most, request.num_most - known - 1)
        if known + most > request.room and not self._kv.has_room(request, known + most):
            most = min(most, request.room - known)
        return most

    def _make_room(self, request: Request, drafts: int) -> None:
        """Allocates the blocks for so many draft tokens of the request; the pool must have them."""
        known = request.num_tokens + drafts
        if known > request.room and (missing := self._kv.missing(request, known)):
            self._kv.grow(request, missing)

    def _add_drafts(self, chunk: Chunk, drafts: Sequence[int]) -> None:
        """Adds draft tokens to the tokens that a chunk computes."""
        if drafts:
            self._make_room(chunk.request, len(drafts))
            chunk.drafts = drafts
            chunk.count += len(drafts)
            chunk.request.num_computed += len(drafts)
