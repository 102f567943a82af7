"""`corepipe top` of a real server, in real terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.cli.test_reading import PLACED
from tests.servers import PATIENCE_SECONDS, TINY, Served, command, run, served, until
from tests.serving.http_support import FakeEngine, running

OWN_TERMINAL = """
import fcntl, termios
from corepipe.__main__ import main
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
main()
"""
"""`corepipe` in a session whose Ctrl-C is this terminal's."""

SPARE_SCREEN, USUAL_SCREEN, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(TINY, "--served-model-name", "tiny") as server:
        yield server


@contextmanager
def load(server: Served) -> Iterator[None]:
    """One request after the other."""
    over = threading.Event()

    def ask() -> None:
        body = {"model": "tiny", "prompt": "Hi there", "max_tokens": 200, "ignore_eos": True}
        while not over.is_set():
            server.post("/v1/completions", json=body)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass
class Terminal:
    """A pseudo-terminal with a `corepipe top` in it; `seen` is what was written to it."""

    url: str
    rows: int = 24
    kind: str = "xterm-256color"
    seen: bytearray = field(default_factory=bytearray)

    def __enter__(self) -> Terminal:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, 80, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, "top", self.url, "--interval", "100ms"],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, "TERM": self.kind},
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 4096)
            except OSError:
                break
            if not data:
                break
            self.seen += data
        os.close(self._ours)

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    @property
    def pictures(self) -> list[str]:
        return re.findall(
            r"corepipe top.*?cost", re.sub(r"\x1b\[[\d;?]*\w", "", self.seen.decode()), re.DOTALL
        )

    @property
    def after(self) -> list[object]:
        return termios.tcgetattr(self._theirs)


ENDS: dict[str, Callable[[Terminal], None]] = {
    "q": lambda terminal: terminal.press(b"q"),
    "Ctrl-C": lambda terminal: terminal.press(b"\x03"),
    "SIGTERM": lambda terminal: terminal.process.send_signal(signal.SIGTERM),
}


@pytest.mark.parametrize("end", ENDS)
def test_it_leaves_the_terminal_as_it_was(server: Served, end: str) -> None:
    with Terminal(server.url) as terminal:
        assert until(lambda: len(terminal.pictures) >= 2)
        assert SPARE_SCREEN in terminal.seen
        assert terminal.after != terminal.before
        ENDS[end](terminal)
        assert terminal.process.wait(PATIENCE_SECONDS) == 0
        assert terminal.after == terminal.before
        assert until(lambda: USUAL_SCREEN in terminal.seen)
        assert terminal.seen.rindex(CURSOR) > terminal.seen.rindex(SPARE_SCREEN)
        assert b"Traceback" not in terminal.seen


def test_a_server_that_ends_is_waited_for() -> None:
    server = running(FakeEngine(), ready=PLACED)
    with Terminal(server.__enter__()) as terminal:
        try:
            assert until(lambda: len(terminal.pictures) >= 1)
        finally:
            server.__exit__(None, None, None)
        assert until(lambda: b"no answer" in terminal.seen)
        assert terminal.process.poll() is None
        terminal.press(b"abc\r\x1b[Aq")
        assert terminal.process.wait(PATIENCE_SECONDS) == 0


def test_under_load_in_tmux(server: Served) -> None:
    """The figures move, the deployment's facts stay, and after Ctrl-C the shell's screen is as before."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("tmux is not installed")
    name = f"corepipe-{os.getpid()}"

    def screen(*arguments: str) -> str:
        done = subprocess.run([tmux, "-L", name, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    top = shlex.join(command("top", server.url, "--interval", "200ms"))
    shell = f"echo before; {top}; echo ended with $?; stty -a | tr ';' '\\n' | grep -w echo; sleep 3600"
    screen("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", shell)
    try:
        with load(server):
            assert until(lambda: "running" in screen("capture-pane", "-p"))
            shown, picture = set(), ""

            def several() -> bool:
                nonlocal picture
                picture = screen("capture-pane", "-p")
                shown.update(re.findall(r"tokens/s +([1-9][\d.]*) out", picture))
                return len(shown) >= 3

            assert until(several), picture
            assert "llama3, int8, on inf2.xlarge (emulated)" in picture
            assert re.search(r"^ *0 [█▏▎▍▌▋▊▉·]{10} +\d+%", picture, re.MULTILINE), picture
            assert len(picture.splitlines()) <= 24
        screen("send-keys", "C-c")
        assert until(lambda: "ended with" in screen("capture-pane", "-p"))
        left = screen("capture-pane", "-p")
        assert [line.split()[-1] for line in left.splitlines() if line.strip()][:2] == ["before", "0"]
        assert until(
            lambda: re.search(r"(^| )echo( |$)", screen("capture-pane", "-p"), re.MULTILINE) is not None
        )
        assert "corepipe top" not in left
    finally:
        screen("kill-server")


def test_in_a_dumb_terminal_it_is_one_picture(server: Served) -> None:
    with Terminal(server.url, kind="dumb") as terminal:
        assert terminal.process.wait(PATIENCE_SECONDS) == 0
        assert until(lambda: len(terminal.pictures) == 1)
        assert b"\x1b" not in terminal.seen
        assert terminal.after == terminal.before


def test_without_a_terminal_it_is_one_picture(server: Served) -> None:
    done = run("top", server.url, "--interval", "100ms")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("corepipe top") == 1
    assert "\x1b" not in done.stdout
    assert "1 of 2 cores are not used by this deployment" in done.stdout
