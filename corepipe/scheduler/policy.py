"""Batch policies: what the device lets a batch hold, and in which order requests are added.

The scheduler holds the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from corepipe.scheduler.request import Request


class BatchBuilder(Protocol):
    """The actions of a policy on the next batch.  Nothing is added where a limit or the blocks forbid it."""

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


def policy(name: str) -> Policy:
    """Returns the policy of this name.  Raises ValueError for an unknown name."""
    policies: dict[str, Policy] = {"mixed": mixed, "segregated": segregated}
    if name not in policies:
        raise ValueError(f"no batch policy is called {name!r}; there are {', '.join(policies)}")
    return policies[name]
