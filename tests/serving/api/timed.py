"""A server whose connections use a clock that the test sets: no client is too slow for their limits."""

from __future__ import annotations

import contextlib
import functools
import threading

from corepipe.serving.api.http import connection
from tests.servers import PATIENCE_SECONDS, until
from tests.serving.http_support import FakeEngine
from tests.wires import connected, everything


class Hourglass:
    """A server's event loop whose timers use a clock that the test sets."""

    def __init__(self, loop):
        self._loop = loop
        self._now = 0.0
        self._timers = {}

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def time(self):
        return self._now

    def call_later(self, seconds, call, *arguments):
        timer = Timer(self, functools.partial(call, *arguments))
        self._timers[timer] = self._now + seconds
        return timer

    def forget(self, timer):
        self._timers.pop(timer, None)

    def pass_time(self, seconds):
        """Runs in the loop."""
        end = self._now + seconds
        while due := [timer for timer, at in self._timers.items() if at <= end]:
            first = min(due, key=self._timers.__getitem__)
            self._now = self._timers.pop(first)
            first.call()
        self._now = end


class Timer:
    def __init__(self, hourglass, call):
        self._hourglass = hourglass
        self.call = call

    def cancel(self):
        self._hourglass.forget(self)


class Timed:
    """A server whose connections use a clock that the test sets, and report what they have read."""

    def __init__(self):
        self.engine = FakeEngine()
        self.made = []
        timed = self

        class Read(connection.Connection):
            def __init__(self, *arguments):
                *others, self.real_loop = arguments
                super().__init__(*others, Hourglass(self.real_loop))
                self.bytes_read = 0

            def connection_made(self, transport):
                super().connection_made(transport)
                timed.made.append(self)

            def data_received(self, data):
                super().data_received(data)
                self.bytes_read += len(data)

        self.connection_type = Read

    @contextlib.contextmanager
    def connected(self):
        """Yields a client and its connection at the server."""
        before = len(self.made)
        with connected(self.url) as client:
            assert until(lambda: len(self.made) > before)
            yield client, self.made[-1]

    def send(self, client, one, data):
        """Sends bytes; returns when the server has read them."""
        before = one.bytes_read
        client.sendall(data)
        assert until(lambda: one.bytes_read == before + len(data))

    def pass_time(self, one, seconds):
        done = threading.Event()
        one.real_loop.call_soon_threadsafe(lambda: (one.loop.pass_time(seconds), done.set()))
        assert done.wait(PATIENCE_SECONDS)

    def after(self, seconds, *sent):
        """Returns the bytes until the server closes; this much time passes after each piece is read."""
        with self.connected() as (client, one):
            for piece in sent:
                self.send(client, one, piece)
                self.pass_time(one, seconds)
            return everything(client)
