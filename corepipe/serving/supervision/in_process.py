"""An engine in a thread of the server's process: for tests."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable

from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Command, LoadProgress, Outputs, Ready, Shutdown
from corepipe.engine.process.session import serve
from corepipe.serving.supervision.client import StreamingClient


class InProcessClient(StreamingClient):
    """An engine in a thread of this process: for tests, and for use where a separate process costs too much.

    It owns the deployment and closes it.
    """

    def __init__(self, deployment: Deployment) -> None:
        super().__init__()
        self._deployment = deployment
        self._inbox = QueueInbox()
        self._thread: threading.Thread | None = None

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:  # noqa: ARG002
        """Starts the thread; the deployment is loaded already, so there is no progress to report."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="engine", daemon=True)
        self._alive = True
        self._thread.start()
        return self._deployment.ready

    async def close(self) -> None:
        if self._thread is not None:
            self._inbox.put(Shutdown())
            await asyncio.to_thread(self._thread.join)
            await asyncio.sleep(0)  # the thread's last outputs are callbacks of this loop
        self._die()

    def _command(self, command: Command) -> None:
        self._inbox.put(command)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def send(news: Outputs) -> None:
            loop.call_soon_threadsafe(self._take, news)

        driver = Driver(self._deployment, lambda started: send(Outputs(started=started)), self._inbox.wake)

        try:
            serve(driver, self._inbox, send)
        finally:
            driver.close()
            loop.call_soon_threadsafe(self._die)


class QueueInbox:
    """Commands from other threads of this process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    def wake(self) -> None:
        """Ends the wait of `receive`, or the next one."""
        self._queue.put(None)

    def receive(self, timeout: float | None) -> list[Command]:
        """Returns the commands so far, as `serve.Inbox` does."""
        found: list[Command | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._queue.get(timeout != 0.0, timeout))
            while True:
                found.append(self._queue.get_nowait())
        return [command for command in found if command is not None]
