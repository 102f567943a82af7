from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from corepipe.bench.transport import Address, ConnectionPool, TransportError
from tests.servers import PATIENCE_SECONDS

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
UNFRAMED = b"HTTP/1.0 200 OK\r\n\r\nhi"
FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Reader:
    def __init__(self, most: int = 1 << 30) -> None:
        self.enough = False
        self.status = 0
        self.body = b""
        self.most = most

    def start(self, status: int) -> None:
        self.status = status

    def read(self, data: bytes, now: float) -> None:
        assert now > 0
        self.body += data
        self.enough = len(self.body) >= self.most


class Server(asyncio.Protocol):
    """Answers each request with the next of the given texts, in pieces; None disconnects."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        answer = self.answers.pop(0)
        if answer is not None:
            self.transport.write(answer)
        if answer in {None, UNFRAMED}:
            self.transport.close()


def asked(answers: list[Any], ask: Callable[[ConnectionPool], Any]) -> tuple[Any, int]:
    """Returns the result of `ask`, and the number of connections that it took."""

    async def main() -> tuple[Any, int]:
        made: list[Server] = []

        def connected() -> Server:
            made.append(Server(answers))
            return made[-1]

        server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
        pool = ConnectionPool(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        try:
            return await ask(pool), len(made)
        finally:
            pool.close()
            server.close()

    return asyncio.run(main())


async def twice(pool: ConnectionPool) -> list[tuple[int, bytes]]:
    found = []
    for _ in range(2):
        reader = Reader()
        await pool.exchange(REQUEST, reader)
        found.append((reader.status, reader.body))
        await asyncio.sleep(0.01)
    return found


def test_a_connection_is_used_again() -> None:
    assert asked([FINE, FINE], twice) == ([(200, b"hi")] * 2, 1)


def test_one_that_is_to_be_closed_is_not() -> None:
    closing = FINE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert asked([closing, FINE], twice) == ([(200, b"hi")] * 2, 2)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    assert asked([UNFRAMED, FINE], twice) == ([(200, b"hi")] * 2, 2)


def test_a_stale_connection_is_tried_anew() -> None:
    assert asked([FINE, None, FINE], twice) == ([(200, b"hi")] * 2, 2)


def test_what_is_said_out_of_turn_ends_the_connection() -> None:
    assert asked([FINE + FINE, FINE], twice)[1] == 2


def test_informational_answers_come_before_the_real_one() -> None:
    assert asked([b"HTTP/1.1 103 Early Hints\r\n\r\n" + FINE, FINE], twice) == ([(200, b"hi")] * 2, 1)


def test_chunks_are_read_as_they_come_and_the_rest_may_be_left() -> None:
    async def some(pool: ConnectionPool) -> bytes:
        reader = Reader(most=4)
        await pool.exchange(REQUEST, reader)
        return reader.body

    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n"
    assert asked([chunked], some)[0] == b"abcd"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "disconnected"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "timeout"),
        (b"SSH-2.0-OpenSSH\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", "timeout"),
    ],
)
def test_failures_have_kinds(answer: bytes | None, kind: str) -> None:
    async def once(pool: ConnectionPool) -> str:
        try:
            async with asyncio.timeout(0.1 if kind == "timeout" else PATIENCE_SECONDS):
                await pool.exchange(REQUEST, Reader())
        except TransportError as error:
            return error.kind
        except TimeoutError:
            return "timeout"
        return ""

    assert asked([answer], once)[0] == kind


def test_a_server_without_tls() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TransportError, match="SSL") as caught:
            await ConnectionPool(Address("127.0.0.1", port, ssl.create_default_context())).exchange(
                REQUEST, Reader()
            )
        assert caught.value.kind == "tls"
        server.close()

    asyncio.run(main())


def test_nobody_listens() -> None:
    async def main() -> None:
        with pytest.raises(TransportError) as caught:
            await ConnectionPool(Address("127.0.0.1", 1)).exchange(REQUEST, Reader())
        assert caught.value.kind == "connect"

    asyncio.run(main())
