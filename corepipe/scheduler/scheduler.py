"""Token-level continuous batching.

There is no prefill and no decode: each batch lets requests' computed tokens catch up with their known
ones.  That gives chunked prompts, prefix-cache hits and recompute after preemption by one rule, and requests
for what the model makes of a prompt, without a generated token: they end when the two are equal.

Draft tokens are computed behind the known ones, where a batch has room that no known token needs.  Those that
the model draws as well become known tokens; the others count as never computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.hybrid_kv_cache import HybridKVCache
from corepipe.scheduler.kv_cache import CacheListener, KVCache, NothingKept
from corepipe.scheduler.next_batch import (
    BatchDrafter,
    NextBatch,
    OneForEachStage,
    Pipeline,
    Policy,
    Sharing,
    mixed,
)
from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Batch, Chunk, Drafted, FinishReason, Rank, Request, Status, TokenEvent
from corepipe.scheduler.running import QueueFull, Running, WaitingQueue
from corepipe.scheduler.snapshot_kv_cache import SnapshotKVCache
from corepipe.scheduler.windowed_kv_cache import WindowedKVCache

__all__ = ["Pipeline", "QueueFull", "Scheduler", "SchedulerConfig"]


class Scheduler:
    """Decides which tokens of which requests the next batch computes.

    Batches overlap in a pipeline: `schedule` can be called again before `update`, and `update` takes the
    batches in the order in which they were scheduled.  `pipeline` says how many are best (None: one for each
    stage): requests that generate are in so many, of about the same size, and prompts fill what that leaves
    free of the stages.  `together`: drafts for several requests in one call.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy = mixed,
        pipeline: Pipeline | None = None,
        together: BatchDrafter | None = None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._together = together
        self._queue = WaitingQueue(config.max_queued_requests, config.max_queued_tokens)
        self._kv = _kv_cache(config)
        self._requests: dict[str, Request] = {}
        self._running = Running(config, self._queue, self._kv)
        pipeline = pipeline or OneForEachStage(config.stages)
        self._sharing = Sharing(config, self._running, self._queue, self._kv, pipeline)
        self._leaving: set[Request] = set()  # aborted, with a batch still in flight
        self._num_background = 0  # of the unfinished requests
        self._num_added = 0
        self._num_scheduled = 0
        self._num_updated = 0
        self._generating: deque[bool] = deque()  # of each batch in flight: whether a request generates in it
        self.drafted = Drafted()

    def add(self, request: Request) -> None:
        """Queues a new request; one that is held starts only after its `release`.

        Raises QueueFull where too much is waiting, ValueError for a request that can never run.
        """
        self._check_request(request)
        request.rank = Rank(request.priority, request.arrival, self._num_added)
        request.num_most = min(request.num_prompt + request.max_tokens, self._config.max_model_len)
        self._queue.push(request)
        self._num_added += 1
        self._num_background += request.in_background
        self._requests[request.id] = request

    def release(self, request: Request) -> None:
        """Lets a held request start, as if it had never been held."""
        self._queue.release(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """Ends a request for this reason, wherever it is; returns None where it is unknown or has ended.

        Where it is in flight it keeps its blocks until it comes back; its token is dropped then.
        """
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, reason)
        return request

    def schedule(self) -> Batch | None:
        """Returns the next batch; None where nothing can run now."""
        share = self._sharing.share(len(self._generating), sum(self._generating))
        if share is None:
            return None
        background = self._num_background == len(self._requests)
        step = NextBatch(self._config, self._running, self._queue, self._kv, share, background=background)
        self._policy(step)
        if not step.chunks:
            return None
        step.draft(self._together)
        self._num_scheduled += 1
        self._generating.append(step.generates)
        if len(step.chunks) < len(self._running):
            self._running.queue_up([chunk.request for chunk in step.chunks])
        return Batch(self._num_scheduled, tuple(step.chunks))

    def update(self, batch: Batch, tokens: Sequence[Sequence[int]]) -> list[TokenEvent]:
        """Takes the oldest batch in flight back, with the tokens that were drawn of each chunk: one where it
        samples, and up to one more for each of its drafts.  A request that generates nothing gets none.

        Returns the events of each chunk whose request has not ended.  Raises ValueError where `batch` is
        not the oldest, or `tokens` do not fit its chunks.
        """
        self._check_result(batch, tokens)
        self._num_updated += 1
        self._generating.popleft()
        events: list[TokenEvent] = []
        for chunk, drawn in zip(batch.chunks, tokens, strict=True):
            if chunk.request.status is Status.FINISHED:
                chunk.request.num_done += chunk.count
                self._leave(chunk.request)
            elif chunk.drafts:
                events += self._verify(chunk, drawn)
            else:
                events.append(self._land(chunk, drawn))
        return events

    def repeats(self, batch: Batch) -> bool:
        """Returns whether the next batch computes the tokens that this one draws and nothing else, if none of
        its requests ends before, none comes and none is released; valid when the batch was just scheduled.

        Their blocks must have room for the tokens already: the result of a batch must be known before more
        blocks are allocated.
        """
        head = self._queue.peek() if self._running.seats > 0 else None
        if self._num_background and self._num_background < len(self._requests):  # it has to wait
            running = sum(not request.in_background for request in self._running)
            head = None if head is not None and head.in_background else head
        else:
            running = len(self._running)
        if len(batch.chunks) < running or head is not None:
            return False
        return all(chunk.samples and self._goes_on(chunk.request) for chunk in batch.chunks)

    def listen(self, listener: CacheListener) -> None:
        """Reports from now on to `listener` which blocks the prefix cache finds."""
        self._kv.listen(listener)

    def cached_prefix(self, request: Request) -> int:
        """Returns how many tokens a request would find in the prefix cache now."""
        return self._kv.cached_prefix(request)

    def announce(self, index: PrefixIndex, bit: int) -> bool:
        """Keeps `index` up to date with the prefix cache, which must be empty; returns False where blocks
        alone do not decide which prefix a request finds, so that `cached_prefix` must be called."""
        return self._kv.announce(index, bit)

    def __contains__(self, request_id: str) -> bool:
        """Returns whether a request of this id is unfinished."""
        return request_id in self._requests

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Returns the ids of unfinished requests, in the order in which they were added."""
        return tuple(self._requests)

    @property
    def requests(self) -> Collection[Request]:
        """Returns the unfinished requests, in the order in which they were added."""
        return self._requests.values()

    @property
    def unfinished(self) -> int:
        """Returns the number of unfinished requests."""
        return len(self._requests)

    def has_unfinished(self) -> bool:
        """Returns whether a request is unfinished, or an aborted one is still in flight."""
        return bool(self._requests or self._leaving)

    @property
    def block_size(self) -> int:
        """Returns the number of tokens of a KV block."""
        return self._config.block_size

    @property
    def most_in_flight(self) -> int:
        """Returns how many batches may be in flight at once."""
        return self._config.most_in_flight

    def check(self) -> None:
        """Raises RuntimeError unless blocks and reference counts match the requests that hold them."""
        holders = [*self._running, *self._leaving]
        self._kv.check(holders)
        if any(request.block_ids or request.state_ids for request in self._queue):
            raise RuntimeError("a waiting request holds KV blocks")
        if len(self._running) + len(self._queue) != len(self._requests):
            raise RuntimeError("a request is neither running nor waiting, or both")

    @property
    def preemptions(self) -> int:
        """Returns the number of preemptions so far."""
        return self._running.preemptions

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def fills_batch(self) -> bool:
        """Returns whether the waiting requests fill a batch, so that no other could join them in it."""
        tokens = self._config.max_num_batched_tokens
        return len(self._queue) >= self._running.seats or self._queue.num_tokens >= tokens

    @property
    def held(self) -> int:
        """Returns the number of waiting requests that may not start yet."""
        return self._queue.num_held

    @property
    def waiting_tokens(self) -> int:
        return self._queue.num_tokens

    @property
    def blocks_total(self) -> int:
        return self._kv.pool.total

    @property
    def blocks_held(self) -> int:
        return self._kv.pool.held

    @property
    def blocks_cached(self) -> int:
        return self._kv.pool.cached

    @property
    def prefix_queries(self) -> int:
        """Returns how many prompt tokens were looked up in the prefix cache."""
        return self._kv.prefix_queries

    @property
    def prefix_hits(self) -> int:
        """Returns how many prompt tokens were found in the prefix cache."""
        return self._kv.prefix_hits

    def _check_request(self, request: Request) -> None:
        config, prompt = self._config, len(request.prompt)
        if request.id in self._requests:
            raise ValueError(f"a request with the id {request.id!r} has not ended yet")
        if prompt < 1 or request.max_tokens < 0:
            raise ValueError("a request needs a prompt token and max_tokens of at least 0")
        if prompt >= config.max_model_len + (request.max_tokens == 0):
            raise ValueError(
                f"a prompt of {prompt} tokens leaves no room in max_model_len = {config.max_model_len}"
            )
        if prompt > config.max_queued_tokens:
            raise ValueError(
                f"a prompt of {prompt} tokens passes max_queued_tokens = {config.max_queued_tokens}"
            )
        # The last token that is generated is never computed: nothing follows it.
        computed = min(prompt + request.max_tokens, config.max_model_len) - (request.max_tokens > 0)
        blocks = self._kv.blocks_for(computed)
        if blocks > config.num_blocks:
            raise ValueError(
                f"the request needs {blocks} KV blocks; there are num_blocks = {config.num_blocks}"
            )

    def _check_result(self, batch: Batch, tokens: Sequence[Sequence[int]]) -> None:
        if batch.number != self._num_updated + 1:
            raise ValueError(f"batch {batch.number} came back, but {self._num_updated + 1} is the oldest")
        given = [len(drawn) for drawn in tokens]
        if [c.samples for c in batch.chunks] == given:
            return  # all that samples generates, and there are no drafts, as is mostly so
        if len(given) != len(batch.chunks) or not all(map(_fits, batch.chunks, given)):
            raise ValueError(f"batch {batch.number}: there must be one token for each chunk that samples")

    def _goes_on(self, request: Request) -> bool:
        """Returns whether a request that gets a token continues with another step, unless the token ends
        it."""
        known = request.num_tokens + 1
        return known <= request.room and known < request.num_most and request.drafter is None

    def _land(self, chunk: Chunk, drawn: Sequence[int]) -> TokenEvent:
        request, count = chunk.request, chunk.count
        request.num_done += count
        if self._kv.is_due(request, count):
            self._kv.commit(request, count)
        if not drawn:
            return self._computed(chunk)
        token, reason = drawn[0], None
        request.append(token)
        if request.num_tokens >= request.num_most or token in request.stop_ids or request.complete:
            reason = self._finish_reason(request, token, complete=request.complete)
            if reason is not None:
                self._end(request, reason)
        return TokenEvent(request, token, reason)

    def _verify(self, chunk: Chunk, drawn: Sequence[int]) -> list[TokenEvent]:
        """Appends the accepted tokens, up to the request's end.  Its known tokens but the last are computed
        then; the cache entries of rejected drafts will be overwritten."""
        request, done = chunk.request, chunk.request.num_done
        standing, events = chunk.verified(drawn), []
        for left, token in enumerate(standing, 1 - len(standing)):
            request.append(token)
            reason, complete = None, left == 0 and request.complete
            if request.num_tokens >= request.num_most or token in request.stop_ids or complete:
                reason = self._finish_reason(request, token, complete=complete)
            events.append(TokenEvent(request, token, reason))
            if reason is not None:
                break
        request.num_computed = request.num_done = request.num_tokens - 1
        count = request.num_done - done
        if self._kv.is_due(request, count):
            self._kv.commit(request, count)
        accepted = min(len(events), len(standing) - 1)
        request.drafted = request.drafted or Drafted()
        for drafted in (self.drafted, request.drafted):
            drafted.count(len(chunk.drafts), accepted)
        if request.drafter is not None:
            request.drafter.verified(len(chunk.drafts), accepted)
        if reason is not None:
            self._end(request, reason)
        return events

    def _computed(self, chunk: Chunk) -> TokenEvent:
        """Takes a chunk that gave no token: a request that generates nothing ends with its last chunk."""
        if not chunk.samples:
            return TokenEvent(chunk.request, None, None)
        self._end(chunk.request, FinishReason.STOP)
        return TokenEvent(chunk.request, None, FinishReason.STOP)

    def _finish_reason(self, request: Request, token: int, *, complete: bool) -> FinishReason | None:
        if complete or (token in request.stop_ids and request.num_generated >= request.min_tokens):
            return FinishReason.STOP
        return FinishReason.LENGTH if request.num_tokens >= request.num_most else None

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.status is Status.RUNNING:
            self._running.leave(request)
        else:
            self._queue.remove(request)
        del self._requests[request.id]
        self._num_background -= request.in_background
        request.status, request.finish_reason = Status.FINISHED, reason
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """Frees the blocks of a request that has ended, once no batch in flight writes to them."""
        if request.in_flight:
            self._leaving.add(request)
        else:
            self._leaving.discard(request)
            self._kv.release(request)


def _fits(chunk: Chunk, tokens: int) -> bool:
    """Returns whether a chunk may have so many drawn tokens."""
    least = int(chunk.samples and chunk.request.max_tokens > 0)
    return least <= tokens <= least + len(chunk.drafts)


def _kv_cache(config: SchedulerConfig) -> KVCache:
    if not config.keeps_state:
        return NothingKept(config)
    if config.num_states:
        return HybridKVCache(config)
    if config.state_span is not None:
        return SnapshotKVCache(config)
    if config.windows != (None,):
        return WindowedKVCache(config)
    return KVCache(config)
