"""Files: what clients upload, and what strangers try."""

from __future__ import annotations

import gzip
import http.client
import io
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.servers import until
from tests.serving.http_support import FakeEngine, openai_client, running

KEYS = ("key-one", "key-two")
MOST = 3 * 1024 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "here"


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with running(
        FakeEngine(), api_keys=KEYS, store_dir=folder, max_file_bytes=MOST, store_bytes=8 * MOST
    ) as one:
        yield one


@pytest.fixture(scope="module")
def mine(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[0], max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def other(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[1], max_retries=0) as client:
        yield client


def form(*parts: tuple[str, bytes], boundary: str = "edge", end: str = "--\r\n") -> bytes:
    """A form; a part is what follows `Content-Disposition: form-data; `, and its data."""
    sent = b""
    for disposition, data in parts:
        sent += (
            f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + data + b"\r\n"
        )
    return sent + f"--{boundary}{end}".encode()


PURPOSE = ('name="purpose"', b"batch")
FILE = ('name="file"; filename="a.jsonl"', b"{}")
FORM = "multipart/form-data; boundary=edge"


def post(url: str, body: bytes, kind: str = FORM, **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[0]}", "content-type": kind, **headers}
    return httpx.post(f"{url}/v1/files", content=body, headers=headers)


def test_a_file_comes_back_as_it_was_sent(mine: openai.OpenAI) -> None:
    data = random.Random(1).randbytes(2_500_000) + b"\r\n--edge\r\n\r\n" * 3
    file = mine.files.create(file=("naïve ../../x.bin", io.BytesIO(data)), purpose="user_data")
    assert (file.bytes, file.filename, file.purpose) == (len(data), "naïve ../../x.bin", "user_data")
    assert mine.files.retrieve(file.id) == file
    assert mine.files.content(file.id).read() == data
    assert mine.files.wait_for_processing(file.id).id == file.id
    assert mine.files.delete(file.id).deleted
    for gone in (mine.files.retrieve, mine.files.content, mine.files.delete):
        with pytest.raises(openai.NotFoundError, match=file.id):
            gone(file.id)


def test_lists_go_in_pages_by_purpose(mine: openai.OpenAI) -> None:
    made = [
        mine.files.create(file=(f"{number}", b"x"), purpose=("batch", "evals")[number % 2])
        for number in range(7)
    ]
    listed = [file.id for file in mine.files.list(purpose="evals", limit=2)]  # the SDK asks for all pages
    assert listed == [file.id for file in made[1::2]][::-1]
    assert [file.id for file in mine.files.list(order="asc", limit=3)] == [file.id for file in made]
    with pytest.raises(openai.NotFoundError):
        mine.files.list(after="file-none")
    for bad in ({"limit": 0}, {"limit": 10_001}, {"order": "up"}, {"extra_query": {"colour": "red"}}):
        with pytest.raises(openai.BadRequestError):
            mine.files.list(**bad)


def test_another_key_sees_nothing(mine: openai.OpenAI, other: openai.OpenAI) -> None:
    file = mine.files.create(file=("a", b"secret"), purpose="user_data")
    assert file.id not in [one.id for one in other.files.list()]
    said = set()
    for call in (other.files.retrieve, other.files.content, other.files.delete):
        for name in (file.id, "file-" + 32 * "0"):
            with pytest.raises(openai.NotFoundError) as refused:
                call(name)
            said.add(str(refused.value).replace(name, "ID"))
    assert len(said) == 1, "it does not show that somebody else has it"
    assert mine.files.content(file.id).read() == b"secret"


def test_a_file_expires_when_its_client_says(mine: openai.OpenAI) -> None:
    after = {"anchor": "created_at", "seconds": 3600}
    file = mine.files.create(file=("a", b"x"), purpose="batch", expires_after=after)
    assert file.expires_at == file.created_at + 3600
    for bad in ({"seconds": 3599}, {"seconds": 2_592_001}, {"seconds": "1e4"}, {"anchor": "now"}):
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            mine.files.create(file=("a", b"x"), purpose="batch", expires_after=after | bad)


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "..\\x", "a%2Fb", "file-..", "C:\\x", "\u202egpj.exe"[1:]]
)
def test_names_are_no_paths(mine: openai.OpenAI, folder: Path, name: str) -> None:
    before = {*folder.rglob("*")}
    file = mine.files.create(file=(name, b"x"), purpose="batch")
    assert {*folder.rglob("*")} - before == {folder / "files" / file.id}
    shown = name.removeprefix("C:\\")  # a path of Windows, which old browsers send, has its last part
    assert mine.files.retrieve(file.id).filename == shown


@pytest.mark.parametrize("name", ["../store.sqlite", "..%2fstore.sqlite", "%2e%2e/lock", "", "%00"])
def test_ids_are_no_paths(url: str, name: str) -> None:
    target = urlsplit(url)
    with closing(http.client.HTTPConnection(target.hostname, target.port)) as wire:  # httpx would resolve ..
        for end in ("", "/content"):
            wire.request("GET", f"/v1/files/{name}{end}", headers={"authorization": f"Bearer {KEYS[0]}"})
            answer = wire.getresponse()
            assert (answer.status, b"SQLite" in answer.read()) == (404, False)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (form(PURPOSE, FILE, end=""), FORM, "invalid_form"),
        (form(PURPOSE, FILE)[:-40], FORM, "invalid_form"),
        (b"", FORM, "invalid_form"),
        (form(PURPOSE, FILE, boundary="other"), FORM, "invalid_form"),
        (form(PURPOSE, FILE), "multipart/form-data", "invalid_form"),
        (form(PURPOSE, FILE), f"multipart/form-data; boundary={'x' * 300}", "invalid_form"),
        (form(PURPOSE, (f'name="file"; filename="{"x" * 9000}"', b"")), FORM, "invalid_form"),
        (form(PURPOSE), FORM, "missing_required_parameter"),
        (form(FILE), FORM, "missing_required_parameter"),
        (form(('name="purpose"', b"fine-tune"), FILE), FORM, "invalid_value"),
        (form(PURPOSE, PURPOSE, FILE), FORM, "invalid_value"),
        (form(PURPOSE, FILE, FILE), FORM, "invalid_value"),
        (form(PURPOSE, FILE, ('name="model"', b"x")), FORM, "unsupported_parameter"),
        (form(('name="purpose"', b"b" * 5000), FILE), FORM, "invalid_value"),
        (form(('name="purpose"', b"\xff"), FILE), FORM, "invalid_value"),
        (form(PURPOSE, ('name="file"; filename="a\x00b"', b"")), FORM, "invalid_value"),
        (form(PURPOSE, *[(f'name="f{number}"', b"x") for number in range(50)]), FORM, "request_too_complex"),
        (b'{"purpose": "batch"}', "application/json", "unsupported_media_type"),
    ],
)
def test_what_is_no_upload_is_refused_and_leaves_nothing(
    url: str, folder: Path, body: bytes, kind: str, said: str
) -> None:
    before = {*folder.rglob("*")}
    answer = post(url, body, kind)
    assert (answer.status_code, answer.json()["error"]["code"]) in ((400, said), (415, said))
    assert {*folder.rglob("*")} == before


def test_compressed_bodies_are_refused_before_they_are_read(url: str) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    answer = post(url, bomb, **{"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_what_is_too_large_is_refused_and_leaves_nothing(url: str, folder: Path) -> None:
    before, large = {*folder.rglob("*")}, form(PURPOSE, (FILE[0], bytes(MOST + 50_000)))
    told = post(url, large)
    chunked = post(url, iter([large[at : at + 65536] for at in range(0, len(large), 65536)]))
    assert [told.status_code, chunked.status_code] == [413, 413]
    assert {*folder.rglob("*")} == before


def test_a_file_that_has_no_room_removes_the_oldest() -> None:
    with (
        running(FakeEngine(), max_file_bytes=MOST, store_bytes=2 * MOST) as small,
        openai_client(small) as client,
    ):
        made = [client.files.create(file=("a", bytes(2_000_000)), purpose="batch").id for _ in range(5)]
        assert [file.id for file in client.files.list(order="asc")] == made[-2:]


def test_a_client_that_leaves_leaves_nothing(url: str, folder: Path) -> None:
    before, target = {*(folder / "files").iterdir()}, urlsplit(url)
    with closing(http.client.HTTPConnection(target.hostname, target.port)) as wire:
        wire.putrequest("POST", "/v1/files")
        for name, value in (("authorization", f"Bearer {KEYS[0]}"), ("content-type", FORM)):
            wire.putheader(name, value)
        wire.putheader("content-length", "1000000")
        wire.endheaders(form(PURPOSE, (FILE[0], bytes(200_000)), end=""))
        assert until(lambda: {*(folder / "files").iterdir()} > before)
    assert until(lambda: {*(folder / "files").iterdir()} == before)
