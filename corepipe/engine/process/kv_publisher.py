"""KV events over ZeroMQ, in vLLM's frames: a PUB socket, and a ROUTER socket that repeats missed batches.

Nothing here waits for a subscriber: ZeroMQ drops the batches that a subscriber does not take, and it notices
that by their numbers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from corepipe.engine.config import EngineConfig, KVEventsConfig
from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.kv_events import CacheEvents, CacheLog
from corepipe.errors import UserError

if TYPE_CHECKING:  # an extra, and only loaded where events are published
    import zmq

FLAG = "kv_events_config"
ANSWERS_WAITING = 1_000
"""The most batches that wait for a subscriber that asked for them, and does not read."""
ANSWER_SECONDS = 5
"""The time after which such an answer is given up, as other subscribers ask too; this one can ask again."""
_END = (-1).to_bytes(8, "big", signed=True)


@contextmanager
def published_events(config: EngineConfig, deployment: Deployment) -> Iterator[CacheEvents | None]:
    """Yields the receiver of the events of a driver's caches; None where events are not configured.

    Raises UserError as KVPublisher does, and where there is no prefix cache whose blocks stay.
    """
    events_config = config.kv_events_config
    if events_config is None or not events_config.publishes:
        yield None
        return
    limits = deployment.replicas[0].scheduler
    if not limits.keeps_state:
        raise UserError("--kv-events-config: this model has no prefix cache", FLAG)
    if limits.block_size == limits.state_span:
        raise UserError(
            "--kv-events-config: this model keeps states of sequences, not blocks of tokens", FLAG
        )
    if None not in limits.windows:
        raise UserError("--kv-events-config: every layer of this model has a window", FLAG)
    with closing(KVPublisher(events_config)) as publisher:
        events = CacheEvents(CacheLog(limits.block_size), publisher.publish)
        events.publish_new()
        yield events


class KVPublisher:
    """Publishes batches under numbers from 0 on, and keeps the latest for subscribers that ask for them
    again.

    Raises UserError where ZeroMQ is missing, or an address cannot be bound.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        try:
            import zmq  # noqa: PLC0415 -- an extra
        except ImportError as error:
            message = "--kv-events-config: pyzmq is missing; pip install 'corepipe[kv-events]'"
            raise UserError(message, FLAG) from error
        self._topic = config.topic.encode()
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._keeping = threading.Lock()
        self._context = zmq.Context()
        self._threads: list[threading.Thread] = []
        try:
            self._publisher = self._opened(zmq.PUB, config.endpoint, config.hwm)
            if config.replay_endpoint is not None:
                router = self._opened(zmq.ROUTER, config.replay_endpoint, ANSWERS_WAITING)
                router.router_mandatory = 1  # otherwise messages beyond the limit would be dropped
                router.sndtimeo = 1000 * ANSWER_SECONDS
                self._threads.append(threading.Thread(target=self._repeat, args=(router,), daemon=True))
        except UserError:
            self._context.destroy(linger=0)
            raise
        for thread in self._threads:
            thread.start()

    def publish(self, batch: bytes) -> None:
        """Sends a batch to all subscribers; does not wait."""
        with self._keeping:
            number = self._number
            self._number += 1
            self._kept.append((number, batch))
        self._publisher.send_multipart([self._topic, number.to_bytes(8, "big"), batch])

    def close(self) -> None:
        """Frees the addresses; batches that were not sent are dropped."""
        self._publisher.close(linger=0)
        self._context.term()  # ends the threads that wait in it, which close their own sockets
        for thread in self._threads:
            thread.join()

    def _opened(self, kind: int, address: str, most: int) -> zmq.Socket[bytes]:
        """Binds to an address with a wildcard, a path or IPv6's; connects to others, as vLLM does."""
        import zmq  # noqa: PLC0415 -- loaded by now

        opened: zmq.Socket[bytes] = self._context.socket(kind)
        opened.set_hwm(most)
        binds = kind == zmq.ROUTER or "*" in address or "::" in address or address.startswith("ipc://")
        try:
            (opened.bind if binds else opened.connect)(address)
        except zmq.ZMQError as error:
            opened.close(linger=0)
            raise UserError(
                f"--kv-events-config: {address}: {zmq.strerror(error.errno or 0)}", FLAG
            ) from None
        return opened

    def _repeat(self, router: zmq.Socket[bytes]) -> None:
        """Answers requests for the batches from a number on; any other message gets no answer."""
        import zmq  # noqa: PLC0415 -- loaded by now

        try:
            while True:
                question = router.recv_multipart()
                if len(question) == 3 and len(question[2]) == 8:
                    self._answer(router, question[0], int.from_bytes(question[2]))
        except zmq.ContextTerminated:
            router.close(linger=0)

    def _answer(self, router: zmq.Socket[bytes], who: bytes, first: int) -> None:
        """Sends each kept batch from number `first` on, and then an empty one; fewer to a subscriber that
        does not read them, or is gone."""
        import zmq  # noqa: PLC0415 -- loaded by now

        with self._keeping:
            kept = [(number, batch) for number, batch in self._kept if number >= first]
        frames: Sequence[tuple[bytes, bytes, bytes]] = [
            *((self._topic, number.to_bytes(8, "big"), batch) for number, batch in kept),
            (b"", _END, b""),
        ]
        try:
            for one in frames:
                router.send_multipart([who, b"", *one])
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
