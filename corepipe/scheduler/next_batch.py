"""The next batch: the chunks that a policy has added so far, and the room that is left."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.drafts import BatchDrafter, add_drafts
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.micro_batches import BatchShare
from corepipe.scheduler.queue import WaitingQueue
from corepipe.scheduler.request import Chunk, Rank, Request, Status
from corepipe.scheduler.running import Running


class NextBatch:
    """Builds a batch; implements `policy.BatchBuilder`.

    The seats that its share keeps are for prompts and for requests with a higher priority than the head of
    the queue alone, as long as a request in the queue may start.
    """

    def __init__(
        self, config: SchedulerConfig, running: Running, queue: WaitingQueue, kv: KVCache, share: BatchShare
    ) -> None:
        self._config = config
        self._running = running
        self._queue = queue
        self._kv = kv
        self._tokens = config.max_num_batched_tokens
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

    def ready(self) -> Sequence[Request]:
        return [r for r in self._running if r.num_computed < r.num_tokens]

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
        if self._tokens > 0 and self._seats > 0 and not (self._config.whole_prompts and self._is_too_long()):
            request = self._running.admit(self._short)
            if request is not None and self._run(request):
                self._admitted.add(request)
                self._kept = max(0, self._kept - 1)
                return True
        self._kept = 0
        return False

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
        """Adds draft tokens to the batch, where it has room for them; `together` drafts for requests whose
        own drafter proposes none."""
        if self._draftable:
            add_drafts(self.chunks, self._draftable, self._tokens, self._config, self._kv, together)
