"""Logs the state of a server in a few lines, when a signal requests it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sized

from corepipe.engine.messages import Stats
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.http.limits import ConnectionLimit


def log_state(models: Models, connections: ConnectionLimit, answers: Sized) -> None:
    """Logs the state of a server; `answers`: the HTTP requests under way."""
    for line in _lines(models, len(connections), len(answers)):
        logging.getLogger(__name__).warning(line)


def _lines(models: Models, connections: int, answering: int) -> Iterator[str]:
    under_way = f"{connections} connections, {answering} HTTP requests under way{_dropped()}"
    if not models.several:
        yield f"state: {_engine(models.first)}; {under_way}"
    else:
        yield f"state: {models.state}; {under_way}{_pool(models)}"
    for service in models.services:
        if models.several:
            yield f"{service.names[0]}: {_engine(service)}"
        for stats in service.client.stats:
            yield _replica(stats)


def _pool(models: Models) -> str:
    """Returns what the pool of models does, where models are loaded on demand."""
    if models.pool is None or not models.on_demand:
        return ""
    engines = models.pool.engines
    states = ", ".join(f"{count} {state}" for state, count in engines.states.items() if count)
    return f"; models: {states or 'none loaded'}; {engines.waiting} requests wait for theirs"


def _engine(service: Service) -> str:
    client, ready = service.client, service.ready
    lost = ", ".join(f"{count} {reason}" for reason, count in sorted(client.restarts.items()))
    engine = f"engine {ready.pid}" if ready is not None and client.alive else "no engine"
    return f"{service.state}; {engine}, lost before: {lost or 'none'}"


def _replica(stats: Stats) -> str:
    return (
        f"replica {stats.replica}: {stats.running} requests running, {stats.waiting} waiting "
        f"({stats.waiting_tokens} tokens); of {stats.blocks_total} KV blocks {stats.blocks_held} held and "
        f"{stats.blocks_cached} cached; so far {stats.prompt_tokens} tokens of prompts and "
        f"{stats.generation_tokens} of answers, {stats.preemptions} preemptions"
    )


def _dropped() -> str:
    lines = getattr(sys.stderr, "dropped", 0)
    return f"; {lines} lines of this log could not be written" if lines else ""
