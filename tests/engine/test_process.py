from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pydantic import ValidationError

from corepipe.engine.channel import FrameDecoder, FrameError, Heartbeat, encode_frame, make_heartbeat
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Event, Failed, LoadProgress, Outputs, Ready, Shutdown, Start
from corepipe.engine.process import session
from corepipe.signals import SHARED
from tests.engine.engine_support import assemble_null, submit
from tests.engine.test_stderr import full_pipe
from tests.servers import PATIENCE_SECONDS, until
from tests.serving.supervision.test_client import child

CONFIG = encode_frame(Start(EngineConfig(model="none").model_dump(mode="json"), epoch=7))


class Wire:
    """The parent's end of the socket, read without a client."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.connection = connection
        self.process = process
        self._frames = FrameDecoder[Event](Event)
        self._events: list[Event] = []

    def next(self) -> Event:
        while not self._events:
            data = self.connection.recv(65536)
            if not data:
                raise EOFError
            self._events += self._frames.feed(data)
        return self._events.pop(0)

    def rest(self) -> Iterator[Event]:
        """Returns all messages up to the end of the stream."""
        try:
            while True:
                yield self.next()
        except EOFError:
            return

    def rest_until_idle(self) -> Iterator[Outputs]:
        """Returns the messages until a request has ended."""
        while True:
            event = self.next()
            assert isinstance(event, Outputs)
            yield event
            if any(output.finish_reason for output in event.outputs):
                return

    def until(self, kind: type[Event]) -> list[Event]:
        events = [self.next()]
        while not isinstance(events[-1], kind):
            events.append(self.next())
        return events


@contextmanager
def engine(assemble: str = "assemble_slow", stderr: int | None = None) -> Iterator[Wire]:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_SECONDS)
    fds = [theirs.fileno(), make_heartbeat()]
    with ours, theirs:
        started = subprocess.Popen([*child(assemble), *map(str, fds)], pass_fds=fds, stderr=stderr)
        theirs.close()
        os.close(fds[1])
        try:
            yield Wire(ours, started)
        finally:
            started.kill()
            started.wait()


def test_progress_then_ready_then_outputs() -> None:
    with engine("assemble_null") as wire:
        wire.connection.sendall(CONFIG)
        events = wire.until(Ready)
        assert [type(event) for event in events] == [LoadProgress, LoadProgress, Ready]
        wire.connection.sendall(encode_frame(submit("a", max_tokens=1)))
        news = list(wire.rest_until_idle())
        assert [started.id for event in news for started in event.started] == ["a"]
        assert [output.id for event in news for output in event.outputs] == ["a"]
        assert {event.epoch for event in news} == {7}


def test_shutdown_aborts_and_ends() -> None:
    with engine() as wire:
        wire.connection.sendall(CONFIG)
        wire.until(Ready)
        both = encode_frame(submit("a", max_tokens=250)) + encode_frame(Shutdown())
        wire.connection.sendall(both)  # at once, or it may have answered before it is to end
        news = [event for event in wire.rest() if isinstance(event, Outputs)]
        ends = [o.finish_reason for event in news for o in event.outputs if o.finish_reason]
        assert ends == ["abort"]
        assert wire.process.wait(PATIENCE_SECONDS) == 0


def test_it_ends_when_its_parents_end_is_closed() -> None:
    with engine() as wire:
        wire.connection.sendall(CONFIG)
        wire.until(Ready)
        wire.connection.sendall(encode_frame(submit("a", max_tokens=250)))
        wire.next()
        wire.connection.close()
        assert wire.process.wait(PATIENCE_SECONDS) == 0


def test_it_ends_when_the_parent_goes_before_the_config() -> None:
    with engine() as wire:
        wire.connection.sendall(CONFIG[:7])
        wire.connection.close()
        assert wire.process.wait(PATIENCE_SECONDS) == 0


def test_signals_are_its_parents_to_answer() -> None:
    with engine() as wire:
        wire.connection.sendall(CONFIG)
        wire.until(Ready)
        for number in sorted(SHARED):
            wire.process.send_signal(number)
            wire.connection.sendall(encode_frame(submit(number.name, max_tokens=20)))
            ends = [o.finish_reason for event in wire.rest_until_idle() for o in event.outputs]
            assert ends[-1] == "length", number
        wire.connection.sendall(encode_frame(Shutdown()))
        assert wire.process.wait(PATIENCE_SECONDS) == 0


BAD_CONFIGS = {
    "unknown key": (encode_frame(Start({"model": "none", "unknown": 1}, 0)), "unknown"),
    "bad value": (encode_frame(Start({"model": "none", "max_num_seqs": 0}, 0)), "max_num_seqs"),
    "no number": (encode_frame({"config": {"model": "none"}}), "epoch"),
    "oversize": ((2**31).to_bytes(4, "little"), "limit"),
}


@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_a_bad_config_is_no_config(kind: str) -> None:
    frame, message = BAD_CONFIGS[kind]
    ours, theirs = socket.socketpair()
    heartbeat = make_heartbeat()
    with ours, theirs:
        ours.sendall(frame)
        with pytest.raises((ValidationError, FrameError), match=message):
            session.run(theirs, Heartbeat(heartbeat), assemble_null, print)
    os.close(heartbeat)


def test_a_bad_config_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    frame, message = BAD_CONFIGS["bad value"]
    with engine() as wire:
        wire.connection.sendall(frame)
        failed = wire.next()
        assert isinstance(failed, Failed)
        assert message in failed.message
        assert wire.process.wait(PATIENCE_SECONDS) == 1


def test_a_bad_frame_ends_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    with engine() as wire:
        wire.connection.sendall(CONFIG)
        wire.until(Ready)
        wire.connection.sendall(b"\x01\x00\x00\x00\xc1")
        failed = wire.until(Failed)[-1]
        assert isinstance(failed, Failed)
        assert not failed.user_error
        assert wire.process.wait(PATIENCE_SECONDS) == 1


def test_last_words_do_not_wait_for_who_reads_the_log() -> None:
    with full_pipe() as (_reader, writer, _filled), engine("assemble_broken", writer) as wire:
        wire.connection.sendall(CONFIG)
        failed = wire.next()
        assert isinstance(failed, Failed)
        assert "a fault of ours" in failed.message
        assert wire.process.wait(PATIENCE_SECONDS) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for it")
def test_it_does_not_outlive_a_killed_parent() -> None:
    """The grandchild stays in its load, where it reads no command, and still ends with its parent."""
    code = (
        "import socket, subprocess, sys, time\n"
        "from corepipe.engine.channel import Heartbeat, make_heartbeat\n"
        "ours, theirs = socket.socketpair()\n"
        "fds = [theirs.fileno(), make_heartbeat()]\n"
        f"command = {[*child('assemble_forever')]!r}\n"
        "process = subprocess.Popen([*command, *map(str, fds)], pass_fds=fds)\n"
        f"ours.sendall({CONFIG!r})\n"
        "ours.recv(10)\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        assert running(grandchild)
        parent.kill()
        assert until(lambda: not running(grandchild))


def running(pid: int) -> bool:
    """Tells whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rsplit(") ", 1)[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
