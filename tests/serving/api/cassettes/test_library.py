"""Directories of cassettes: the exchange that answers, its order, the nearest one, and untrusted files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.serving.api.cassettes import library as limits
from corepipe.serving.api.cassettes.exchange import (
    AnswerPiece,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
)
from corepipe.serving.api.cassettes.file_format import to_text
from corepipe.serving.api.cassettes.library import CassetteLibrary, read_library
from corepipe.serving.api.cassettes.redaction import Redaction, read_redaction
from corepipe.serving.api.cassettes.writer import CassetteWriter
from corepipe.serving.api.table import is_recorded

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def asked(text: str, path: str = CHAT) -> RecordedRequest:
    body = b'{"model":"tiny","messages":[{"role":"user","content":"%b"}]}'
    return RecordedRequest("POST", path, body % text.encode())


def saying(request: RecordedRequest, answer: str) -> RecordedExchange:
    piece = AnswerPiece(1.0, b'"%b"' % answer.encode())
    return RecordedExchange(request, RecordedAnswer(200, JSON, (piece,)))


def opened(folder: Path, redaction: Redaction | None = None) -> CassetteLibrary:
    return read_library(folder, redaction or Redaction(), is_recorded)


def written(folder: Path, *exchanges: RecordedExchange) -> Path:
    writer = CassetteWriter(folder, Redaction(), "record", lambda _: None)
    for exchange in exchanges:
        writer.add(exchange)
    writer.close()
    return folder


def heard(library: CassetteLibrary, request: RecordedRequest) -> str | None:
    found = library.take(request)
    return None if found is None else found.answer.body.decode().strip('"')


def test_identical_requests_get_theirs_in_order_and_then_the_last_again(tmp_path: Path) -> None:
    said = [saying(asked("a"), str(number)) for number in range(12)]
    library = opened(written(tmp_path, *said[:3], saying(asked("b"), "other"), *said[3:]))
    assert len(library) == 13
    assert [heard(library, asked("a")) for _ in range(14)] == [*map(str, range(12)), "11", "11"]
    assert [heard(library, asked("b")) for _ in range(2)] == ["other"] * 2
    assert heard(library, asked("c")) is None
    assert library.models == ["tiny"]


def test_files_may_have_any_names_and_numbers_in_them_are_numbers(tmp_path: Path) -> None:
    for name in ("b 2.yaml", "b 10.yaml", "a.yaml", "b 010x.yaml"):
        (tmp_path / name).write_bytes(to_text(saying(asked("a"), name)))
    for name in ("README.md", ".hidden.yaml", "x.yml"):
        (tmp_path / name).write_text("no cassette")
    (tmp_path / "folder").mkdir()
    library = opened(tmp_path)
    names = ["a.yaml", "b 2.yaml", "b 10.yaml", "b 010x.yaml"]
    assert [heard(library, asked("a")) for _ in range(4)] == names


def test_names_say_what_was_asked_and_stay_when_others_come(tmp_path: Path) -> None:
    written(tmp_path / "one", saying(asked("a"), "1"), saying(asked("b"), "2"))
    written(tmp_path / "two", saying(asked("c"), "0"), saying(asked("b"), "2"), saying(asked("a"), "1"))
    one, two = ({file.name for file in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one < two
    assert all(name.startswith("chat-completions-") and name.endswith("-001.yaml") for name in two)


def test_what_is_there_is_added_to(tmp_path: Path) -> None:
    """Any number of writers, unaware of each other, record into one directory."""
    writers = [CassetteWriter(tmp_path, Redaction(), "record", lambda _: None) for _ in range(4)]
    for number in range(200):
        writers[number % 4].add(saying(asked("a"), str(number)))
    for writer in writers:
        writer.close()
    library = opened(written(tmp_path, saying(asked("a"), "last")))
    told = [heard(library, asked("a")) for _ in range(201)]
    assert sorted(told[:-1], key=int) == list(map(str, range(200)))
    assert told[-1] == "last"
    assert len(list(tmp_path.iterdir())) == 201, "drafts are left behind"


def test_a_list_of_models_is_recorded_once(tmp_path: Path) -> None:
    models = RecordedRequest("GET", "/v1/models")
    library = opened(written(tmp_path, saying(models, "first"), saying(models, "second")))
    assert [heard(library, models) for _ in range(2)] == ["first"] * 2
    assert len(library) == 1


def test_the_nearest_and_how_it_differs(tmp_path: Path) -> None:
    story = "Once upon a time there was a king. " * 20
    texts = ["What is the capital of France?", story + "He had a son.", "Name three colours."]
    library = opened(written(tmp_path, *(saying(asked(text), "x") for text in texts)))
    near = library.nearest(asked(story + "He had a daughter."))
    assert near is not None
    rows = near.difference.split("\n")
    assert any(row.startswith("-") and "He had a son." in row for row in rows)
    assert any(row.startswith("+") and "He had a daughter." in row for row in rows)
    assert len(rows) < 12
    assert "king" in (tmp_path / near.file).read_text()
    france = library.nearest(asked("What is the capital of Spain?"))
    assert france is not None
    assert "France" in france.difference
    assert library.nearest(asked("a", "/v1/completions")) is None


def test_a_difference_is_bounded(tmp_path: Path) -> None:
    library = opened(written(tmp_path, saying(asked(r"a\n" * 5000), "x")))
    near = library.nearest(asked(r"b\n" * 5000 + "x" * 5000))
    assert near is not None
    assert len(near.difference) < 5000
    assert near.difference.endswith("…")


def test_rules_apply_to_what_is_looked_for(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("[[rule]]\npath='$.messages[*].content'\nregex='[0-9]{2}:[0-9]{2}'\n")
    folder = written(tmp_path / "tapes", saying(asked("At 12:00."), "noon"))
    assert heard(opened(folder, read_redaction(file)), asked("At 13:30.")) == "noon"
    assert heard(opened(folder), asked("At 13:30.")) is None


# Directories of strangers


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        opened(folder)
    assert caught.value.message.startswith(f"--replay {folder}")
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(f"--replay {folder}")


GOOD = to_text(saying(asked("a"), "x")).decode()
WRONG = {
    "empty": "",
    "binary": "\x00\x01",
    "of another kind": "interactions: []\nversion: 1\n",
    "of metrics": GOOD.replace('"POST"', '"GET"').replace(CHAT, "/metrics").replace('"body": {', '"x": {'),
    "of another path": GOOD.replace(CHAT, "/../../etc/passwd"),
    "of another method": GOOD.replace('"POST"', '"DELETE"'),
    "no object": GOOD.replace('"body": {\n      "model"', '"body": [], "model": {\n      "model"'),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_no_cassettes(tmp_path: Path, name: str) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "wrong.yaml").write_text(WRONG[name])
    assert refused(tmp_path).startswith("/wrong.yaml: ")


def test_links_pipes_and_directories(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0")
    links = (lambda path: path.symlink_to(secret), lambda path: path.symlink_to(path))
    for number, make in enumerate((*links, os.mkfifo, os.mkdir)):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "a.yaml")
        assert refused(folder) == "/a.yaml: is not a regular file"


def test_too_large_and_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = tmp_path / "huge"
    huge.mkdir()
    with (huge / "a.yaml").open("wb") as file:
        file.truncate(limits.MAX_FILE * 1000)
    assert refused(huge) == f"/a.yaml: is larger than {limits.MAX_FILE} bytes"
    folder = written(tmp_path / "three", *(saying(asked(text), "x") for text in "abc"))
    monkeypatch.setattr(limits, "MAX_FILES", 2)
    assert refused(folder) == ": holds more than 2 files"
    monkeypatch.setattr(limits, "MAX_FILES", 3)
    monkeypatch.setattr(limits, "MAX_TOTAL", 2 * len(GOOD))
    assert "the directory holds more than" in refused(folder)


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == ": No such file or directory"
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file") == ": Not a directory"


def test_a_name_with_control_characters_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "a\n\x1b[31m.yaml").write_text("x")
    with pytest.raises(UserError) as caught:
        opened(tmp_path)
    assert caught.value.message.isprintable()


# Directories that cannot be written


def test_a_directory_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--replay .*/file: File exists"):
        CassetteWriter(tmp_path / "file", Redaction(), "replay", lambda _: None)
    with pytest.raises(UserError, match=r"^--record /proc/none: "):
        CassetteWriter(Path("/proc/none"), Redaction(), "record", lambda _: None)


def test_what_cannot_be_written_is_told_and_the_rest_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    folder = tmp_path / "tapes"
    writer = CassetteWriter(folder, Redaction(), "record", counted.append)
    folder.rename(tmp_path / "away")
    writer.add(saying(asked("a"), "lost"))
    writer.add(saying(asked("b"), "lost"))
    writer._pool.submit(lambda: None).result()
    (tmp_path / "away").rename(folder)
    writer.add(RecordedExchange(asked("c"), RecordedAnswer(200, JSON, (AnswerPiece(0.0, b"\xff"),))))
    writer.add(saying(asked("c"), "there"))
    writer.close()
    assert counted == ["lost", "lost", "lost", "recorded"]
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"an exchange was not recorded in {folder}: No such file or directory; "
        "further ones are counted at the end",
        f"3 exchanges were not recorded in {folder}",
    ]
    assert heard(opened(folder), asked("c")) == "there"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="wants a device that is full")
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def full(path: Path, mode: str = "r", **more: object) -> object:
        real_open(path, mode).close()
        return real_open(Path("/dev/full"), "wb", buffering=0)

    counted: list[str] = []
    writer = CassetteWriter(tmp_path, Redaction(), "record", counted.append)
    monkeypatch.setattr(Path, "open", full)
    writer.add(saying(asked("a"), "x"))
    writer.close()
    assert counted == ["lost"]
    assert list(tmp_path.iterdir()) == []
