"""The inside of a scheduler, for who makes its moves in its place.

Simulations do, where many moves in a row are alike (`corepipe.simulation.rotation`).  Nobody else
comes through this door, and the scheduler keeps nothing for those who do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.micro_batches import Sharing
from corepipe.scheduler.queue import WaitingQueue
from corepipe.scheduler.request import Request


class Internals(NamedTuple):
    """What the next moves depend on: the parts themselves, no copies.

    running: by priority, then by who was scheduled longest ago.  steady: somebody generates in each batch in
    flight, and nobody in them was aborted.  moved: must be called once requests and blocks are as after so
    many moves, each an `update` of the oldest batch and a `schedule`, with those who were scheduled last, in
    order (nobody, where one batch holds all who run).
    """

    limits: SchedulerConfig
    running: Sequence[Request]
    queue: WaitingQueue
    kv: KVCache
    sharing: Sharing
    steady: bool
    moved: Callable[[int, list[Request]], None]
