"""What a front and a host say to each other: frames as between a server and its engine, over TLS.

A front counts its connections to a host: the number is the connection's `lease`, and a host obeys the latest
alone.  A host counts its engines: the number is an engine's `epoch`.  What is said of an engine bears it, in
both directions; what is said of one that is gone is dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corepipe.engine.messages import Abort, Failed, LoadProgress, Outputs, Ready, Submit
from corepipe.engine.process.frames import FrameDecoder

BEAT_SECONDS = 0.25
"""Between two signs of life, in each direction."""

SILENT_SECONDS = 1.5
"""Without any, after which a link is lost: to the front, which goes on elsewhere, and to the host, which
gives up everything."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first word of a front: who it is, and the EngineConfig that the host is to run, as plain data."""

    lease: int
    version: str
    config: dict[str, Any]


class EngineOrder(msgspec.Struct, frozen=True, tag=True):
    """A command for the engine `epoch`; where that is gone it is for nobody."""

    epoch: int
    command: Submit | Abort


class Beat(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """A sign of life.  refused: how often a host has refused somebody, by reason, since it started."""

    refused: dict[str, int] = {}


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The engine `epoch` takes orders, and has none.  prefixes: keys of what it finds, as in Prefixes."""

    epoch: int
    ready: Ready
    prefixes: bytes = b""


class Gone(msgspec.Struct, frozen=True, tag=True):
    """The engine `epoch` is lost with all that it had; the host starts another one."""

    epoch: int
    reason: str
    words: str


FromFront = Hello | EngineOrder | Beat
FromHost = Loaded | Gone | Outputs | LoadProgress | Beat | Failed


def front_decoder() -> FrameDecoder[FromFront]:
    """Decodes what a front says."""
    return FrameDecoder(msgspec.msgpack.Decoder(FromFront))


def host_decoder() -> FrameDecoder[FromHost]:
    """Decodes what a host says."""
    return FrameDecoder(msgspec.msgpack.Decoder(FromHost))
