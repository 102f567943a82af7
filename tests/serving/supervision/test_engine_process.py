"""Processes of engines that are started before their config is known."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from corepipe.engine.channel import FrameDecoder, encode_frame
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Start
from corepipe.serving.supervision.engine_process import EngineError, EngineProcess

CONFIG = EngineConfig(model="tiny")

ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as connection:
    while data := connection.recv(1 << 16):
        connection.sendall(data)
"""
ENDS = "raise SystemExit(3)"


def command(program: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", program)


def test_what_it_loads_is_said_once_however_often_it_is_told() -> None:
    with EngineProcess(command(ECHO)) as one:
        one.tell(CONFIG)
        one.tell(CONFIG)
        with pytest.raises(ValueError, match="something else"):
            one.tell(CONFIG.model_copy(update={"seed": 1}))
        with pytest.raises(ValueError, match="something else"):
            one.tell(CONFIG, 1)
        one.socket.sendall(encode_frame(Start({}, 9)))
        frames, heard = FrameDecoder[Start](Start), []
        while len(heard) < 2:
            heard += frames.feed(one.socket.recv(1 << 16))
        assert heard == [Start(CONFIG.model_dump(mode="json"), 0), Start({}, 9)]


def test_it_ends_with_its_context() -> None:
    with EngineProcess(command(ECHO)) as one:
        assert one.runs
        assert one.returncode is None
    assert one.returncode == -signal.SIGKILL


def test_one_that_has_died_can_be_told() -> None:
    """Its connection reports the end to its reader."""
    with EngineProcess(command(ENDS)) as one:
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        one.tell(CONFIG)
        assert one.socket.recv(1) == b""
        assert not one.runs
    assert one.returncode == 3


def test_what_is_no_program_is_no_engine() -> None:
    with pytest.raises(EngineError, match="cannot be started"):
        EngineProcess(("/no/such/program",))
