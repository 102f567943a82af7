from __future__ import annotations

import json
import socket

import httpx
import pytest

from corepipe.serving.api import app
from corepipe.serving.api.http import connection, limits
from tests.servers import PATIENCE_SECONDS, until
from tests.serving.api.timed import Timed
from tests.serving.http_support import FakeEngine, running, saying
from tests.wires import HOST, JSON, MALFORMED, POST, connected, everything, exchange, get, post, replies

BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 2}).encode()
SECOND = get("/version", b"X-Request-Id: second\r\n")


@pytest.fixture
def timed(monkeypatch):
    made = Timed()
    monkeypatch.setattr(app, "Connection", made.connection_type)
    with running(made.engine) as made.url:
        yield made


@pytest.fixture
def patient(monkeypatch):
    """Removes the time limits that a busy machine could reach."""
    for name in ("HEAD_SECONDS", "IDLE_SECONDS", "BODY_GRACE_SECONDS"):
        monkeypatch.setattr(connection, name, 1e6)


def refused(url, sent, status):
    """Checks that the only answer is an error, after which the server closes the connection."""
    answers = exchange(url, sent)
    assert [one.status for one in answers] == [status]
    assert answers[0].headers["connection"] == "close"
    assert answers[0].error["type"] == "invalid_request_error" if status != 429 else True
    return answers[0]


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_http_is_answered_once_and_what_follows_is_not_executed(url, engine, name):
    before = len(engine.submitted)
    answer = refused(url, MALFORMED[name] + SECOND + post("/v1/completions", BODY), 400)
    assert answer.error["code"] == "invalid_http"
    assert len(engine.submitted) == before


def test_a_refusal_waits_for_the_answers_before_it(url):
    first = get("/version", close=False)
    answers = exchange(url, first + first + MALFORMED["two Hosts"] + first)
    assert [one.status for one in answers] == [200, 200, 400]
    slow = post("/v1/completions", BODY).replace(b"Connection: close\r\n", b"")
    answers = exchange(url, slow + MALFORMED["a folded header"] + SECOND)
    assert [one.status for one in answers] == [200, 400]
    assert json.loads(answers[0].body)["usage"]["completion_tokens"] == 2


def test_a_fault_in_a_later_piece_of_the_body_ends_the_request(url, engine):
    before = len(engine.submitted)
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    answers = exchange(url, head + b"1\r\n{\r\n", b"zz\r\n")
    assert [one.status for one in answers] == [400]
    assert len(engine.submitted) == before


def test_trailers_are_no_headers():
    with running(FakeEngine(), api_keys=["k"]) as where:
        head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        body = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer k\r\n\r\n" % (len(BODY), BODY)
        assert [one.status for one in exchange(where, head + body)] == [401]


def test_a_trailer_without_end_is_refused(url):
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-A: "
    assert [one.status for one in exchange(url, head, *[b"a" * 4000] * 200)] == [431]


@pytest.mark.parametrize("size", [20_000, 65_536, 2_000_000])
def test_a_large_header_is_refused_whole_or_in_pieces(url, size):
    start, end = b"GET /version HTTP/1.1\r\n" + HOST + b"X-A: ", b"\r\n\r\n"
    for pieces in ([start + b"a" * size + end], [start, *[b"a" * 1000] * (size // 1000), end]):
        answers = exchange(url, *pieces)
        assert [one.status for one in answers] == [431]
        assert answers[0].error["code"] == "headers_too_large"


def test_many_headers_are_refused(url):
    refused(url, b"GET /version HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 10_000 + b"\r\n", 431)
    fitting = b"GET /version HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + b"X: y\r\n" * 98 + b"\r\n"
    assert exchange(url, fitting)[0].status == 200
    refused(url, fitting.replace(HOST, HOST + b"X: y\r\n"), 431)


def test_a_long_target_is_refused(url):
    refused(url, get("/" + "x" * 9000), 414)
    assert exchange(url, get("/" + "x" * 7000))[0].status == 404


def test_other_expectations_are_not_met(url):
    refused(url, POST + b"Expect: the-impossible\r\nContent-Length: 2\r\n\r\n{}", 417)


def test_continue_is_said_to_those_whose_body_is_wanted(url):
    with connected(url) as client:
        head = POST + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        client.sendall(head % len(BODY))
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(BODY)
        assert replies(everything(client))[0].status == 200
    with connected(url) as client:
        client.sendall(head % 10**10)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_proxy_is_not_here(url):
    answer = refused(url, b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", 405)
    assert answer.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_upgrade_is_not_taken(url, protocol):
    upgrade = b"Connection: upgrade\r\nUpgrade: " + protocol + b"\r\n"
    answers = exchange(url, get("/version", upgrade, close=False) + SECOND)
    assert [one.status for one in answers] == [200]


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
"""The headers that Java's HttpClient sends by default."""
KEPT = post("/v1/completions", BODY, OFFER).replace(b"Connection: close\r\n", b"")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_body_of_a_request_that_offers_an_upgrade_is_read(url, engine, size):
    sent = KEPT + KEPT + SECOND
    before = len(engine.submitted)
    answers = exchange(url, *[sent[at : at + size] for at in range(0, len(sent), size)])
    assert [one.status for one in answers] == [200, 200, 200]
    assert len(engine.submitted) == before + 2


def test_an_offer_hides_no_second_request(url, engine):
    before = len(engine.submitted)
    both = KEPT.replace(b"Content-Length:", b"Transfer-Encoding: chunked\r\nContent-Length:")
    refused(url, both + SECOND, 400)
    refused(url, KEPT.replace(b"Content-Length: ", b"Content-Length: 1, ") + SECOND, 400)
    chunks = OFFER + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n" % len(BODY)
    assert [one.status for one in exchange(url, POST + chunks + BODY + b"\r\n0\r\n\r\n" + SECOND)] == [200]
    assert len(engine.submitted) == before + 1


def test_pipelined_requests_are_answered_in_order_and_are_not_endless(url):
    def tagged(number, close):
        return get("/version", b"X-Request-Id: %d\r\n" % number, close=close)

    answers = exchange(url, b"".join(tagged(number, number == 9) for number in range(10)))
    assert [one.headers["x-request-id"] for one in answers] == [str(number) for number in range(10)]
    answers = exchange(url, b"".join(tagged(number, close=False) for number in range(2000)))
    assert [one.status for one in answers] == [200] * (len(answers) - 1) + [429]
    assert len(answers) <= connection.MAX_PIPELINED + 2


def test_a_refused_client_that_still_sends_reads_why(timed):
    """Closing a connection with unread bytes resets it, and the answer is lost."""
    with timed.connected() as (client, one):
        timed.send(client, one, POST + b"Content-Length: 10000000000\r\n\r\n")
        for _ in range(8):
            timed.send(client, one, b"x" * 50_000)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
        timed.send(client, one, b"x" * 50_000)
        timed.pass_time(one, connection.LINGER_SECONDS)
        everything(client)  # it is over


def test_a_refused_client_that_never_stops_sending_is_cut_off(url):
    with connected(url) as client:
        client.sendall(POST + b"Content-Length: 10000000000\r\n\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.sendall(b"x" * 50_000_000)


def test_a_body_nobody_waits_for_ends_the_connection(url):
    answers = exchange(url, b"POST /nowhere HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 100\r\n\r\n{")
    assert [one.status for one in answers] == [404]


def test_an_answer_before_the_end_of_the_body_says_that_it_is_the_last(url):
    """Clients that write head and body separately would otherwise send the body to a closed connection."""
    head = b"POST /nowhere HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 2\r\n\r\n"
    with connected(url) as client:
        client.sendall(head)
        (early,) = replies(everything(client))
    assert (early.status, early.headers["connection"]) == (404, "close")
    first, second = exchange(url, head + b"{}" + SECOND)
    assert (first.status, "connection" in first.headers) == (404, False)
    assert second.status == 200


HALF_A_HEAD = b"GET /version HTTP/1.1\r\nHost: local"


def test_late_heads(timed):
    assert timed.after(connection.HEAD_SECONDS, b"") == b""  # not a byte: it hangs up without a word
    (late,) = replies(timed.after(connection.HEAD_SECONDS, HALF_A_HEAD))
    assert (late.status, late.error["code"]) == (408, "request_timeout")
    in_time = get("/version")
    (just,) = replies(timed.after(0.99 * connection.HEAD_SECONDS, in_time[:30], in_time[30:]))
    assert just.status == 200
    whole, half = get("/version", close=False), HALF_A_HEAD
    after_another = replies(timed.after(connection.HEAD_SECONDS, whole + half))
    assert [one.status for one in after_another] == [200, 408]


def test_late_bodies(timed):
    head = POST + b"Content-Length: 100\r\n"
    bodyless, expecting = (
        replies(timed.after(connection.BODY_GRACE_SECONDS, sent))
        for sent in (head + b"\r\n{", head + b"Expect: 100-continue\r\n\r\n")
    )
    assert [one.status for one in bodyless] == [408]
    assert [one.status for one in expecting] == [100, 408]
    assert timed.engine.submitted == []


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [
        (1, connection.BODY_GRACE_SECONDS),
        (connection.BODY_RATE - 1, connection.BODY_GRACE_SECONDS),
        (connection.BODY_RATE, connection.BODY_SECONDS),  # fast enough, but not for so long
    ],
)
def test_bodies_that_drip(timed, rate, seconds):
    with timed.connected() as (client, one):
        timed.send(client, one, POST + b"Content-Length: 100000\r\n\r\n")
        for _ in range(int(seconds)):
            assert not one.is_closing()
            timed.send(client, one, b" " * rate)
            timed.pass_time(one, 1.0)
        assert one.is_closing()
        assert [reply.status for reply in replies(everything(client))] == [408]
    text = httpx.get(timed.url + "/metrics").text
    assert 'corepipe_connections_refused_total{reason="late"} 1.0' in text


def test_idle_connections_are_closed(timed):
    with timed.connected() as (client, one):
        timed.send(client, one, get("/version", close=False))
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        timed.pass_time(one, 0.99 * connection.IDLE_SECONDS)
        assert not one.is_closing()
        timed.pass_time(one, 0.01 * connection.IDLE_SECONDS)
        everything(client)


def test_a_reader_who_does_not_read_is_dropped_and_its_request_aborted(timed):
    timed.engine.script = saying("x" * 400, pause=0.001)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it connects
        client.connect(address(timed.url))
        asked = {"model": "tiny", "prompt": "a", "max_tokens": 250, "stream": True, "n": 8}
        client.sendall(post("/v1/completions", json.dumps(asked | {"logprobs": 5}).encode()))
        assert until(lambda: timed.made and timed.made[0].flow.write_paused)
        assert timed.engine.aborted == []
        timed.pass_time(timed.made[0], connection.WRITE_SECONDS)
        assert until(lambda: len(set(timed.engine.aborted)) == 8)
        assert httpx.get(timed.url + "/health").status_code == 200


HALF = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY[:5]


def full_house(where, count, sent):
    """Opens `count` connections that have each sent these bytes."""
    house = [socket.create_connection(address(where), timeout=PATIENCE_SECONDS) for _ in range(count)]
    for one in house:
        one.sendall(sent)
    return house


def test_where_all_places_are_taken_a_newcomer_is_told_and_nobody_else_goes(patient):
    with running(FakeEngine(), max_connections=8) as where:
        sending = [*full_house(where, 3, HALF), *full_house(where, 3, HALF[:30]), *full_house(where, 2, b"")]
        until_refused(where)
        for _ in range(20):
            (turned_away,) = exchange(where, get("/health"))
            assert (turned_away.status, turned_away.headers["retry-after"]) == (503, "1")
            assert turned_away.error["code"] == "service_unavailable"
        rests = [BODY[5:]] * 3 + [HALF[30:] + BODY[5:]] * 3 + [HALF + BODY[5:]] * 2
        for one, rest in zip(sending, rests, strict=True):
            one.sendall(rest)
            assert replies(everything(one))[0].status == 200
            one.close()
        assert until(lambda: exchange(where, get("/health"))[0].status == 200)


def until_refused(where):
    """Waits until the server has accepted all earlier connections."""
    assert until(lambda: exchange(where, get("/health"))[0].status == 503)


def test_who_rests_between_two_requests_gives_way_after_a_while(patient, monkeypatch):
    """The connection idle for longest is closed first; one answered just now may have sent a request."""
    monkeypatch.setattr(limits, "RESTED_SECONDS", 1e6)
    with running(FakeEngine(), max_connections=3) as where:
        resting = []
        for _ in range(3):
            client = httpx.Client(base_url=where)
            assert client.get("/health").status_code == 200
            resting.append(client)
        assert exchange(where, get("/health"))[0].status == 503
        monkeypatch.setattr(limits, "RESTED_SECONDS", 0.0)
        assert exchange(where, get("/health"))[0].status == 200
        sockets = [client._transport._pool.connections[0] for client in resting]  # type: ignore[attr-defined]
        assert until(lambda: [one.is_idle() and one.has_expired() for one in sockets] == [True, False, False])
        for client in resting:
            client.close()


def test_more_newcomers_than_can_be_told_are_closed(patient):
    with running(FakeEngine(), max_connections=2) as where:
        sending = full_house(where, 2, HALF)
        until_refused(where)
        crowd = [socket.create_connection(address(where), timeout=PATIENCE_SECONDS) for _ in range(80)]
        heard = [everything(one) for one in crowd]
        assert 0 < len([one for one in heard if one]) <= 80
        assert {one[:12] for one in heard} <= {b"HTTP/1.1 503", b""}
        for one in [*sending, *crowd]:
            one.close()


def test_the_room_for_connections_is_that_for_files(monkeypatch):
    allowed = [(256, 1000)]
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: allowed[-1])
    monkeypatch.setattr(limits.resource, "setrlimit", lambda _, limit: allowed.append(limit))
    assert limits.make_room(500) == 500
    assert allowed[-1] == (628, 1000)
    assert limits.too_few_files(500, 500) is None
    assert limits.make_room(4096) == 872
    assert "--max-connections 4096: only 872 are accepted" in limits.too_few_files(4096, 872)


def old(method, path, *headers, body=b""):
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return method + b" " + path + b" HTTP/1.0\r\n" + b"".join(headers) + length + b"\r\n" + body


def test_http_1_0_is_answered_without_chunks_until_the_connection_closes(url, engine):
    engine.script = saying("Hello world. ", pause=0.001)
    asked = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 5, "stream": True}).encode()
    for version, chunked in ((b"1.1", True), (b"1.0", False)):
        sent = post("/v1/completions", asked).replace(b"HTTP/1.1", b"HTTP/" + version)
        with connected(url) as client:
            client.sendall(sent)
            head, _, body = everything(client).partition(b"\r\n\r\n")
        assert (b"transfer-encoding: chunked" in head.lower()) == chunked
        assert b"connection: close" in head.lower()
        if not chunked:
            events = body.decode().split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""]
            texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2]]
            assert "".join(texts) == "Hello w"


def test_http_1_0_needs_no_host_and_http_1_1_does(url):
    for path in (b"/health", b"/health/live", b"/ping", b"/v1/models"):
        (answer,) = exchange(url, old(b"GET", path))
        assert answer.status == 200
        assert int(answer.headers["content-length"]) == len(answer.body)
    (answer,) = exchange(url, old(b"POST", b"/v1/completions", JSON, body=BODY))
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 2
    expecting = old(b"POST", b"/v1/completions", JSON, b"Expect: 100-continue\r\n", body=BODY)
    assert [one.status for one in exchange(url, expecting)] == [200], "1.0 knows no 100"
    assert [one.status for one in exchange(url, old(b"GET", b"/health", HOST, HOST))] == [400]
    assert [one.status for one in exchange(url, old(b"GET", b"/health", b"Host: evil.example\r\n"))] == [421]
    refused(url, b"GET /health HTTP/1.1\r\n\r\n", 400)


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/health", b"evil.example", 200),
        (b"http://127.0.0.1:8000/v1/models?x=y", b"localhost", 200),
        (b"HTTP://[::1]:8000/health", b"localhost", 200),
        (b"http://evil.example/health", b"localhost", 421),
        (b"http://evil.example/v1/models", b"127.0.0.1:8000", 421),
        (b"http://localhost", b"localhost", 200),
        (b"http://localhost@evil.example/health", b"localhost", 400),
        (b"http://evil.example@localhost/health", b"localhost", 400),
        (b"ftp://localhost/health", b"localhost", 400),
        (b"http:///health", b"localhost", 400),
        (b"localhost/health", b"localhost", 400),
    ],
)
def test_a_target_in_absolute_form_decides_and_not_the_host_header(url, target, host, status):
    sent = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
    assert [one.status for one in exchange(url, sent)] == [status]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models", 200),
        ("/%76%31/models", 200),
        ("/v1%2fmodels", 404),
        ("/v1%2Fmodels", 404),
        ("/v1/models%2ftiny", 404),
        ("/v1/models/tiny", 200),
        ("/health%2flive", 404),
    ],
)
def test_an_encoded_slash_is_no_slash(url, path, status):
    assert [one.status for one in exchange(url, get(path))] == [status]


def test_a_served_name_may_have_a_slash():
    with running(FakeEngine(), served_model_names=("org/tiny", "a%2Fb")) as where:
        for path in ("/v1/models/org/tiny", "/v1/models/org%2Ftiny", "/v1/models/org%2ftiny"):
            (answer,) = exchange(where, get(path))
            assert (answer.status, json.loads(answer.body)["id"]) == (200, "org/tiny")


def address(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)
