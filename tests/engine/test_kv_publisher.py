"""KV events over real sockets: frames, missed batches, subscribers that are slow or absent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from corepipe.engine.config import KVEventsConfig
from corepipe.engine.process.kv_publisher import KVPublisher
from corepipe.errors import UserError
from tests.servers import PATIENCE_SECONDS

END = b"\xff" * 8


Opened = Callable[[int], "zmq.Socket[bytes]"]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Makes sockets, and closes them."""
    with zmq.Context() as context, ExitStack() as held:

        def one(kind: int) -> zmq.Socket[bytes]:
            made = held.enter_context(context.socket(kind))
            made.linger = 0
            made.rcvtimeo = int(PATIENCE_SECONDS * 1000)
            return made

        yield one


def config(folder: Path, **more: object) -> KVEventsConfig:
    places = {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}
    return KVEventsConfig.model_validate({"enable_kv_cache_events": True, **places, **more})


def numbered(numbers: range, topic: bytes = b"") -> list[list[bytes]]:
    return [[topic, at.to_bytes(8, "big"), b"batch %d" % at] for at in numbers]


def missed(asker: zmq.Socket[bytes], first: int) -> list[list[bytes]]:
    """Asks for missed batches as vLLM's subscribers do."""
    asker.send_multipart([b"", first.to_bytes(8, "big")])
    found = []
    while (frames := asker.recv_multipart())[2] != END:
        found.append(frames[1:])
    assert frames == [b"", b"", END, b""]
    return found


def test_frames_are_a_topic_a_number_and_a_batch(opened: Opened, tmp_path: Path) -> None:
    """The publisher connects to the subscriber over TCP."""
    reader = opened(zmq.SUB)
    port = reader.bind_to_random_port("tcp://127.0.0.1")
    reader.subscribe(b"kv@")
    asked = config(tmp_path, endpoint=f"tcp://127.0.0.1:{port}", topic="kv@10.0.0.1:8000@tiny")
    with closing(KVPublisher(asked)) as publisher:
        asker = opened(zmq.DEALER)
        asker.connect(f"ipc://{tmp_path}/replay")
        sent = 0
        while not reader.poll(50):  # until it has subscribed
            publisher.publish(b"batch %d" % sent)
            sent += 1
        first = int.from_bytes(reader.recv_multipart()[1], "big")
        for at in range(sent, sent + 3):
            publisher.publish(b"batch %d" % at)
        topic = b"kv@10.0.0.1:8000@tiny"
        live = [reader.recv_multipart() for _ in range(first + 1, sent + 3)]
        assert live == numbered(range(first + 1, sent + 3), topic)
        assert missed(asker, 0) == numbered(range(sent + 3), topic)
        assert missed(asker, sent + 1) == numbered(range(sent + 1, sent + 3), topic)


def test_the_latest_are_kept_and_other_messages_get_no_answer(opened: Opened, tmp_path: Path) -> None:
    with closing(KVPublisher(config(tmp_path, buffer_steps=10))) as publisher:
        for at in range(25):
            publisher.publish(b"batch %d" % at)
        for kind in (zmq.DEALER, zmq.REQ):
            asker = opened(kind)
            asker.connect(f"ipc://{tmp_path}/replay")
            if kind == zmq.DEALER:
                for odd in ([b"x"], [b"", b"short"], [b"", b"8 bytes!", b"more"], [b""] * 50):
                    asker.send_multipart(odd)
                assert missed(asker, 0) == numbered(range(15, 25))
                assert missed(asker, 24) == numbered(range(24, 25))
                assert missed(asker, 25) == missed(asker, 2**64 - 1) == []
            else:
                asker.send((20).to_bytes(8, "big"))
                assert asker.recv_multipart() == numbered(range(20, 21))[0]


def test_a_subscriber_that_does_not_read_holds_nobody_up(opened: Opened, tmp_path: Path) -> None:
    """Every publish returns; the subscriber sees by the numbers which batches it has missed, and can ask for
    them."""
    with closing(KVPublisher(config(tmp_path, hwm=10, buffer_steps=5_000))) as publisher:
        slow, asker = opened(zmq.SUB), opened(zmq.DEALER)
        slow.set_hwm(10)
        slow.subscribe(b"")
        slow.connect(f"ipc://{tmp_path}/events")
        asker.connect(f"ipc://{tmp_path}/replay")
        sent = 0
        while not slow.poll(20):
            publisher.publish(b"batch %d" % sent)
            sent += 1
        large = b"x" * 100_000
        for _ in range(5_000):
            publisher.publish(large)
        got = [int.from_bytes(slow.recv_multipart()[1], "big") for _ in range(5)]
        assert got == sorted(set(got))
        publisher.publish(b"last")
        assert missed(asker, sent + 4_999)[-1][2] == b"last"


def test_one_who_asks_for_much_gets_all_of_it_and_one_who_does_not_read_holds_up_no_batch(
    opened: Opened, tmp_path: Path
) -> None:
    with closing(KVPublisher(config(tmp_path))) as publisher:
        for at in range(8_000):
            publisher.publish(b"batch %d" % at)
        asker, gone = opened(zmq.DEALER), opened(zmq.DEALER)
        for one in (asker, gone):
            one.connect(f"ipc://{tmp_path}/replay")
        for _ in range(3):
            assert missed(asker, 0) == numbered(range(8_000))
        gone.send_multipart([b"", bytes(8)])
        publisher.publish(b"batch 8000")
        gone.close()
        assert missed(asker, 7_999) == numbered(range(7_999, 8_001))


def test_nobody_need_be_there(tmp_path: Path) -> None:
    with closing(KVPublisher(config(tmp_path, endpoint="tcp://127.0.0.1:9", replay_endpoint=None))) as one:
        for _ in range(10_000):
            one.publish(b"x" * 1_000)


def test_an_address_that_cannot_be_had_is_told_in_a_line(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        address = f"tcp://*:{taken.getsockname()[1]}"
        for field in ("endpoint", "replay_endpoint"):
            with pytest.raises(
                UserError, match=r"^--kv-events-config: tcp://\*:\d+: Address already in use$"
            ):
                KVPublisher(config(tmp_path, **{field: address}))
    with closing(KVPublisher(config(tmp_path))):
        pass  # nothing of the failures is left


def test_zeromq_is_loaded_by_who_publishes_alone() -> None:
    code = "import sys, corepipe.engine.process.session, corepipe.cli.run; assert 'zmq' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
