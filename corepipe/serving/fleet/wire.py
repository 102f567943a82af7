"""Messages between a front and a host: frames as between a server and its engine, over TLS.

A front counts its connections to a host: the number is the connection's `lease`, and a host obeys the latest
alone.  A host counts its engines: the number is an engine's `epoch`.  Each message about an engine has it, in
both directions; messages about an engine that is gone are dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corepipe.engine.messages import Abort, Failed, LoadProgress, Outputs, Ready, Submit

BEAT_SECONDS = 0.25
"""The time between two beats, in each direction."""

SILENT_SECONDS = 1.5
"""The time without any message after which a link is lost.  The front then continues its requests on other
hosts, and the host aborts all of them."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message of a front: its lease and version, and the host's EngineConfig as plain data."""

    lease: int
    version: str
    config: dict[str, Any]


class EngineOrder(msgspec.Struct, frozen=True, tag=True):
    """A command for the engine `epoch`; a host drops it if that engine is gone."""

    epoch: int
    command: Submit | Abort


class Beat(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """A sign of life.  refused: counts of what a host has refused since it started, by reason."""

    refused: dict[str, int] = {}


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The engine `epoch` takes commands and has no requests.

    prefixes: the keys of the blocks in its prefix caches, as in Prefixes.
    """

    epoch: int
    ready: Ready
    prefixes: bytes = b""


class Gone(msgspec.Struct, frozen=True, tag=True):
    """The engine `epoch` is lost with all its requests; the host starts another one."""

    epoch: int
    reason: str
    words: str


FromFront = Hello | EngineOrder | Beat
FromHost = Loaded | Gone | Outputs | LoadProgress | Beat | Failed
