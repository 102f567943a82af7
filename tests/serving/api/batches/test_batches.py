"""Batches: every line is answered once, or has an error, whatever happens to the server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from corepipe.engine.messages import Output, Submit, failed_output
from corepipe.scheduler.request import BACKGROUND
from corepipe.serving.api.batches.manager import MOST_AT_ONCE
from corepipe.serving.config import ServerConfig
from corepipe.serving.stores.batches import BATCHES
from corepipe.serving.stores.files import FILES, StoredFile
from corepipe.serving.stores.store import Store
from tests.servers import until
from tests.serving.http_support import FakeEngine, Step, running, saying

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
KEYS = ("key-one", "key-two")


def line(name: str, url: str = CHAT, method: str = "POST", **body: Any) -> dict[str, Any]:
    sent = {"model": "tiny", "messages": [{"role": "user", "content": name}], "max_tokens": 2, **body}
    return {"custom_id": name, "method": method, "url": url, "body": sent}


def jsonl(lines: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in lines).encode()


def client_of(url: str, key: str = KEYS[0]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def begin(client: openai.OpenAI, data: bytes, endpoint: str = CHAT, **more: Any) -> openai.types.Batch:
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def ended(client: openai.OpenAI, batch: openai.types.Batch) -> openai.types.Batch:
    assert until(lambda: client.batches.retrieve(batch.id).status in ENDED)
    return client.batches.retrieve(batch.id)


def results(client: openai.OpenAI, file: str | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    return [json.loads(one) for one in client.files.content(file).text.splitlines()]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with running(engine, api_keys=KEYS, max_body_bytes=100_000) as one:
        yield one


@pytest.fixture(scope="module")
def shared(url: str) -> Iterator[openai.OpenAI]:
    with client_of(url) as client:
        yield client


@pytest.fixture
def client(shared: openai.OpenAI, engine: FakeEngine) -> openai.OpenAI:
    engine.begin_anew()
    return shared


def test_every_line_is_answered_as_over_http(client: openai.OpenAI) -> None:
    batch = begin(client, jsonl([line(f"r{number}") for number in range(50)]), metadata={"a": "b"})
    assert (batch.status, batch.metadata, batch.expires_at - batch.created_at) == (
        "validating",
        {"a": "b"},
        86_400,
    )
    batch = ended(client, batch)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 50, 50, 0)
    assert batch.error_file_id is None
    assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    found = results(client, batch.output_file_id)
    assert sorted(one["custom_id"] for one in found) == sorted(f"r{number}" for number in range(50))
    assert len({one["id"] for one in found}) == 50
    live = client.chat.completions.create(**line("r0")["body"])
    for one in found:
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        answer = openai.types.chat.ChatCompletion.model_validate(one["response"]["body"])
        assert answer.choices == live.choices
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"


def test_a_result_is_one_line_for_every_reader(client: openai.OpenAI, engine: FakeEngine) -> None:
    said = "a\u2028b\u2029c\x85d\x0be\x1cf\rg\nh"
    engine.script = saying(said)
    batch = ended(client, begin(client, jsonl([line("a", max_tokens=100)])))
    (found,) = results(client, batch.output_file_id)  # by str.splitlines
    assert found["response"]["body"]["choices"][0]["message"]["content"].startswith(said)


def test_lines_run_in_the_background_and_draw_the_same_whenever(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    lines = [line("own", seed=5), line("a", temperature=1), line("a2", priority=3), line("b", n=2)]
    seen = []
    for _ in range(2):
        engine.begin_anew()
        ended(client, begin(client, jsonl(lines)))
        assert {one.priority for one in engine.submitted} == {BACKGROUND}
        seen.append({(tuple(one.prompt), one.id[-1]): one.sampling.seed for one in engine.submitted})
    assert seen[0] == seen[1]
    assert len(set(seen[0].values())) == 5
    assert 5 in seen[0].values()


def test_a_bad_line_is_an_error_and_no_end(client: openai.OpenAI) -> None:
    giant = json.dumps(line("giant", user="x" * 100_000)).encode()
    bad = {
        b"no json": None,
        b'{"custom_id": "no-body", "method": "POST", "url": "/v1/chat/completions"}': "no-body",
        b"[1, 2]": None,
        b'{"custom_id": "nul\x00"}': None,
        b"\xff\xfe": None,
        b"[" * 50_000: None,
        giant: None,
        json.dumps(line("get", method="GET")).encode(): "get",
        json.dumps(line("elsewhere", url="/v1/files")).encode(): "elsewhere",
        json.dumps(line("", url=CHAT)).encode(): "",
        json.dumps(line("streamed", stream=True)).encode(): "streamed",
        json.dumps(line("field", colour="red")).encode(): "field",
        json.dumps(line("model", model="other")).encode(): "model",
        json.dumps({**line("list"), "body": [1]}).encode(): "list",
    }
    good = json.dumps(line("good")).encode()
    data = b"\xef\xbb\xbf" + good + b"\r\n\n  \n" + b"\n".join(bad) + b"\n" + good.replace(b"good", b"last")
    batch = ended(client, begin(client, data))
    assert batch.status == "completed"
    assert {one["custom_id"] for one in results(client, batch.output_file_id)} == {"good", "last"}
    errors = results(client, batch.error_file_id)
    assert sorted(str(one["custom_id"]) for one in errors) == sorted(map(str, bad.values()))
    numbers = {int(one["id"].rsplit("_", 1)[1]) for one in errors}
    assert numbers == set(range(4, 4 + len(bad)))
    for one in errors:
        assert one["response"]["status_code"] in (400, 404)
        assert one["response"]["body"]["error"]["message"]
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (2 + len(bad), 2, len(bad))


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (b"{}\n" * 1_000_000, "too_many_lines", 50_001),
        (jsonl([line("a"), line("b"), line("a")]), "duplicate_custom_id", 3),
    ],
)
def test_a_file_that_is_no_batch_fails_before_its_first_line(
    client: openai.OpenAI, engine: FakeEngine, data: bytes, code: str, number: int | None
) -> None:
    batch = ended(client, begin(client, data))
    assert (batch.status, batch.output_file_id, batch.failed_at is not None) == ("failed", None, True)
    assert [(one.code, one.line) for one in batch.errors.data] == [(code, number)]
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"endpoint": "/metrics"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": "../store.sqlite"}, "input_file_id"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"extra_body": {"colour": "red"}}, "colour"),
    ],
)
def test_what_is_no_batch_is_refused_by_the_field(
    client: openai.OpenAI, change: dict[str, Any], param: str
) -> None:
    file = client.files.create(file=("a", jsonl([line("a")])), purpose="batch")
    sent = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **change}
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(**sent)
    assert refused.value.param == param


def test_another_key_sees_nothing(client: openai.OpenAI, url: str) -> None:
    batch = ended(client, begin(client, jsonl([line("a")])))
    with client_of(url, KEYS[1]) as other:
        assert batch.id not in [one.id for one in other.batches.list()]
        for call in (
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.files.content(batch.output_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
        with pytest.raises(openai.BadRequestError, match="No file found"):
            other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    assert next(one.id for one in client.batches.list(limit=1)) == batch.id


def gated(gate: threading.Event, free: int) -> Any:
    """A script that answers the first `free` sequences, and the others once the gate is open."""
    count = iter(range(10**6))

    def script(submit: Submit) -> list[Step]:
        answer = saying("Hello world. ")(submit)
        return answer if next(count) < free else [gate, *answer]

    return script


def test_a_cancelled_batch_keeps_its_answers(client: openai.OpenAI, engine: FakeEngine) -> None:
    gate = threading.Event()
    engine.script = gated(gate, free=5)
    batch = begin(client, jsonl([line(f"r{number}") for number in range(30)]))
    assert until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 5)
    with pytest.raises(openai.ConflictError):
        client.files.delete(batch.input_file_id)
    assert len(engine.submitted) <= 5 + MOST_AT_ONCE
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch)
    assert (batch.status, batch.cancelling_at <= batch.cancelled_at) == ("cancelled", True)
    answered = {one["custom_id"] for one in results(client, batch.output_file_id)}
    errors = results(client, batch.error_file_id)
    assert {one["error"]["code"] for one in errors} == {"batch_cancelled"}
    assert all(one["response"] is None for one in errors)
    assert len(answered) == 5
    assert answered | {one["custom_id"] for one in errors} == {f"r{number}" for number in range(30)}
    assert len(errors) == 25
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    client.files.delete(batch.input_file_id)
    gate.set()


def test_a_line_that_finds_no_place_is_tried_again(client: openai.OpenAI, engine: FakeEngine) -> None:
    refused: set[tuple[int, ...]] = set()

    def script(submit: Submit) -> list[Step]:
        if tuple(submit.prompt) not in refused:
            refused.add(tuple(submit.prompt))
            return [failed_output(submit.id, "The queue is full.", "overloaded")]
        return [*saying("Hi")(submit)]

    engine.script = script
    batch = ended(client, begin(client, jsonl([line("a"), line("b")])))
    assert (batch.request_counts.completed, len(refused)) == (2, 2)


def test_a_line_that_fails_in_the_engine_is_an_error(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = lambda submit: [Output(submit.id, [], finish_reason="error", error="lost")]
    batch = ended(client, begin(client, jsonl([line("a")])))
    (error,) = results(client, batch.error_file_id)
    assert (error["response"]["status_code"], batch.output_file_id) == (500, None)


def test_a_batch_is_no_request_in_flight_of_its_key() -> None:
    engine, gate = FakeEngine(), threading.Event()
    engine.script = gated(gate, free=0)
    with running(engine, api_keys=KEYS, max_requests_per_key=1) as url, client_of(url) as client:
        batch = begin(client, jsonl([line(f"r{number}") for number in range(9)]))
        assert until(lambda: len(engine.submitted) > 1)
        engine.script = saying("Hello")
        client.chat.completions.create(**line("live")["body"])
        gate.set()
        assert ended(client, batch).request_counts.completed == 9


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The server ends while lines are answered; the last result is torn, as by a crash."""
    lines = jsonl([line(f"r{number}") for number in range(40)])
    engine, gate = FakeEngine(), threading.Event()
    engine.script = gated(gate, free=15)
    with running(engine, store_dir=tmp_path) as url, client_of(url) as client:
        batch = begin(client, lines)
        assert until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 15)
        before = engine.submitted[:15]
    files = sorted((tmp_path / "files").iterdir(), key=lambda path: path.stat().st_size)
    (output,) = [path for path in files if path.read_bytes().startswith(b'{"id":"batch_req_')]
    whole = output.read_bytes()
    output.write_bytes(whole[:-10])
    again = FakeEngine()
    with running(again, store_dir=tmp_path) as url, client_of(url) as client:
        batch = ended(client, batch)
        found = results(client, batch.output_file_id)
        assert (
            client.files.content(batch.output_file_id)
            .read()
            .startswith(whole[: whole.rindex(b"\n", 0, -1) + 1])
        )
    assert sorted(one["custom_id"] for one in found) == sorted(f"r{number}" for number in range(40))
    assert batch.request_counts.completed == 40
    assert len(before) == 15
    assert len(again.submitted) == 40 - 14


def changed(folder: Path, **changes: Any) -> None:
    """Changes the only batch of a store that no server uses."""

    async def change() -> None:
        store = Store(ServerConfig(store_dir=folder))
        (row,) = await store.run(lambda kept: kept.unended(BATCHES))
        value = msgspec.structs.replace(row.value, **changes)
        await store.run(lambda kept: kept.update(BATCHES, row.tenant, row.id, value))
        store.close()

    asyncio.run(change())


def test_what_is_not_answered_in_time_expires(tmp_path: Path) -> None:
    engine, gate = FakeEngine(), threading.Event()
    engine.script = gated(gate, free=3)
    with running(engine, store_dir=tmp_path) as url, client_of(url) as client:
        batch = begin(client, jsonl([line(f"r{number}") for number in range(20)]))
        assert until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 3)
    changed(tmp_path, expires_at=0)
    with running(FakeEngine(), store_dir=tmp_path) as url, client_of(url) as client:
        batch = ended(client, batch)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
            "expired",
            3,
            17,
        )
        codes = [one["error"]["code"] for one in results(client, batch.error_file_id)]
    assert codes == ["batch_expired"] * 17


def test_a_start_removes_uploads_that_were_torn(tmp_path: Path) -> None:
    async def tear() -> None:
        store = Store(ServerConfig(store_dir=tmp_path))
        await store.run(lambda kept: kept.insert(FILES, "", "file-torn", StoredFile("", ""), ended=False))
        (await store.folder()).file("file-torn").write_bytes(b"half")
        store.close()

    asyncio.run(tear())
    with running(FakeEngine(), store_dir=tmp_path):
        assert until(lambda: not list((tmp_path / "files").iterdir()))


def test_a_key_has_so_many_batches_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corepipe.serving.api.batches.manager.MOST_WAITING", 2)
    engine, gate = FakeEngine(), threading.Event()
    engine.script = gated(gate, free=0)
    with running(engine) as url, client_of(url) as client:
        made = [begin(client, jsonl([line("a")])) for _ in range(2)]
        with pytest.raises(openai.RateLimitError):
            begin(client, jsonl([line("a")]))
        gate.set()
        assert [ended(client, one).status for one in made] == ["completed"] * 2
