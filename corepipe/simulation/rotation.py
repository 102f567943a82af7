"""Batches that only go round: each lands and is scheduled again just as it is, token by token.

While nothing comes and nobody ends, generation is the same few batches in turn.  How long that holds can
be told beforehand, and that many moves can be made at once.  What comes out is what the scheduler's `update`
and `schedule` would have given, to the last KV block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

from corepipe.scheduler.internals import Internals
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.queue import WaitingQueue
from corepipe.scheduler.request import Batch, Chunk, Request
from corepipe.scheduler.scheduler import Scheduler

Group = Sequence[Request]
"""The requests of a batch, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """`batches` are those in flight, oldest first, `groups` their requests.  Move number s, from 0 on,
    lands group s % len(groups) and schedules it again; `most` moves can be made so.

    blocked: the head of the queue has blocks in the cache and is not let in, but the first move may make it
    a late user of them.  Others do so no more: whoever came to be first in line for eviction stays it.
    """

    batches: tuple[Batch, ...]
    groups: tuple[Group, ...]
    most: int
    blocked: bool = False

    def in_flight(self, moves: int) -> tuple[Batch, ...]:
        """The batches after so many moves, oldest first; the requests must have made them."""
        return tuple(self._batch(move) for move in range(moves, moves + len(self.groups)))

    def _batch(self, move: int) -> Batch:
        """The one that lands with this move."""
        turn = len(self.groups)
        if move < turn:
            return self.batches[move]
        chunks = tuple([Chunk(r, r.num_done, count=1, samples=True) for r in self.groups[move % turn]])
        return Batch(self.batches[0].number + move, chunks)

    def growth(self, group: int, block_size: int) -> list[int]:
        """KV blocks that a group takes in its round r, counted from 1, at index r % block_size."""
        taken = [0] * block_size
        for request in self.groups[group]:
            taken[-request.num_done % block_size] += 1
        return taken


class _Fill(NamedTuple):
    """In move `move` block number `block` of a request is full when it lands, and it takes another one when
    it is scheduled.  `place`: the request's, in its group."""

    move: int
    place: int
    block: int
    request: Request


def find(scheduler: Scheduler, batches: Sequence[Batch]) -> Rotation | None:
    """How long `batches`, all that is in flight, oldest first, only go round if nothing comes.

    None where they do not, or where that cannot be told.
    """
    inside = scheduler.internals
    if not inside.steady or len(batches) != inside.sharing.settled():
        return None
    limits, running, kv = inside.limits, inside.running, inside.kv
    chunks = [chunk for batch in batches for chunk in batch.chunks]
    if len(chunks) != len(running) or not chunks:
        return None
    if any(c.count > 1 or not c.samples or c.request.stop_ids or c.request.drafter for c in chunks):
        return None
    seats = min(inside.sharing.most_seats(len(running)), limits.max_num_batched_tokens)
    if max(len(batch.chunks) for batch in batches) > seats:
        return None
    full = len(running) == limits.max_num_seqs
    hits = 0 if full else _hits_of_the_blocked(inside.queue, kv, len(batches))
    if hits is None:
        return None
    groups = _groups(batches, running)
    return Rotation(tuple(batches), groups, _most_moves(groups, inside, hits), blocked=hits > 0)


def _hits_of_the_blocked(queue: WaitingQueue, kv: KVCache, batches: int) -> int | None:
    """Blocks of the head of the queue that are in the prefix cache, which must be neither lost nor become
    more; 0 where that does not matter, None where the head may get in.

    A request that is tried and not let in becomes a late user of its prefix.  Where batches overlap it is
    not tried each time, and that is more than can be told beforehand.
    """
    head = queue.peek()
    if head is None:
        return 0
    hits, short = _shortage(head, kv)
    return None if short <= 0 or (hits and batches > 1) else hits


def _shortage(request: Request, kv: KVCache) -> tuple[int, int]:
    """Of a request without blocks: how many of them are in the cache, and how many the pool would lack for
    all of its known tokens (0 or less: there is room)."""
    found = [] if request.prompt_logits else kv.find_prefix(request)
    wanted = kv.blocks_for(request.num_tokens) - len(found)
    return len(found), wanted - kv.pool.available + kv.pool.idle(found)


def _groups(batches: Sequence[Batch], running: Sequence[Request]) -> tuple[Group, ...]:
    """The requests of batches that hold all running ones, each batch's in the order of `running`."""
    if len(batches) == 1:
        return (tuple(running),)
    place = {chunk.request: number for number, batch in enumerate(batches) for chunk in batch.chunks}
    groups: tuple[list[Request], ...] = tuple([] for _ in batches)
    for request in running:
        groups[place[request]].append(request)
    return groups


def _most_moves(groups: Sequence[Group], inside: Internals, hits: int) -> int:
    """Moves before a request ends, before blocks run short, or before the head of the queue finds more."""
    size = inside.limits.block_size
    moves = _moves_until_an_end(groups, inside.limits.max_model_len)
    moves = _moves_until_short(groups, moves, size, max(0, inside.kv.pool.available - hits))
    if len(inside.queue) and len(groups) == 1:
        moves = _moves_until_filled(groups[0], moves, size, hits)
    return moves


def _moves_until_an_end(groups: Sequence[Group], max_model_len: int) -> int:
    """Moves before the one in which a request ends."""
    least = []
    for number, group in enumerate(groups):
        left = [min(r.max_tokens - r.num_generated, max_model_len - r.num_tokens) for r in group]
        least.append(number + len(groups) * (min(left) - 1))
    return min(least)


def _moves_until_short(groups: Sequence[Group], moves: int, block_size: int, blocks: int) -> int:
    """Of so many moves, those before the one that takes more than `blocks` KV blocks in all."""
    rounds = -(-moves // len(groups))
    if sum(map(len, groups)) * (rounds // block_size + 1) <= blocks:  # the usual case, cheaply
        return moves
    fills = _fills(groups, moves, block_size)
    return next((fill.move for fill in islice(fills, blocks, None)), moves)


def _moves_until_filled(group: Group, moves: int, block_size: int, index: int) -> int:
    """Of so many moves of a group that is alone, those before the one that fills somebody's block `index`."""
    left = [(index + 1) * block_size - request.num_done for request in group]
    return min([rounds - 1 for rounds in left if rounds > 0] + [moves])


def advance(scheduler: Scheduler, rotation: Rotation, moves: int) -> tuple[Batch, ...]:
    """Makes so many moves of a rotation, at most `rotation.most`; what is in flight then, oldest first.

    The same as the scheduler's `update`, with token 0 for everyone, and `schedule` so many times.
    """
    if rotation.blocked and moves > 0:
        rotation, moves = _move_alone(scheduler, rotation), moves - 1
    inside = scheduler.internals
    _make(rotation, moves, inside.kv)
    batches = rotation.in_flight(moves)
    apart = [chunk.request for batch in batches for chunk in batch.chunks] if len(batches) > 1 else []
    inside.moved(moves, apart)
    return batches


def _move_alone(scheduler: Scheduler, rotation: Rotation) -> Rotation:
    """The rotation after a move by itself: policy and share decide whether the head of the queue is tried,
    and whether before or after those who run take blocks."""
    (batch,) = rotation.batches
    scheduler.update(batch, [(0,)] * len(batch.chunks))
    moved = scheduler.schedule()
    assert moved is not None
    return replace(rotation, batches=(moved,), most=rotation.most - 1, blocked=False)


def _make(rotation: Rotation, moves: int, kv: KVCache) -> None:
    """The first moves of a rotation that is not blocked, as far as requests and blocks go."""
    fills = _fills(rotation.groups, moves, kv.block_size)
    for number, group in enumerate(rotation.groups):
        rounds = _rounds(number, len(rotation.groups), moves)
        tokens = [0] * rounds
        for request in group:
            request.extend(tokens)
            request.num_done += rounds
            request.num_computed += rounds
    for _, of_move in groupby(fills, attrgetter("move")):
        together = list(of_move)
        for fill in together:
            kv.publish(fill.request, fill.block)
        for fill in together:
            kv.grow(fill.request, 1)


def _rounds(group: int, turn: int, moves: int) -> int:
    """How many of so many moves are those of group number `group` of `turn`."""
    return -(-(moves - group) // turn)


def _fills(groups: Sequence[Group], moves: int, size: int) -> list[_Fill]:
    """All that happens to blocks in so many moves, in order."""
    turn = len(groups)
    return sorted(
        _Fill(number + (at - 1) * turn, place, (request.num_done + at) // size - 1, request)
        for number, group in enumerate(groups)
        for place, request in enumerate(group)
        for at in range(size - request.num_done % size, _rounds(number, turn, moves) + 1, size)
    )
