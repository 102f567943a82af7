"""Requests to Ray without a token are counted from its logs, each once, even if the files begin anew."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.serving.fleet import unauthenticated
from corepipe.serving.fleet.client import FleetClient
from corepipe.serving.fleet.identity import Identity
from corepipe.serving.fleet.unauthenticated import UnauthenticatedRequests, counted
from tests.servers import PATIENCE_SECONDS
from tests.serving.fleet.fleet_support import Hosts

LINE = "[2026-11-26 03:37:59,510 W 1 2] (gcs_server) server_call.h:384: Missing authorization header in it!\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "session_latest" / "logs"
    folder.mkdir(parents=True)
    return folder


def write(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def test_each_line_counts_once_in_each_log(tmp_path: Path, logs: Path) -> None:
    found = UnauthenticatedRequests(tmp_path)
    assert found.look() == 0, "before Ray has begun its logs"
    write(logs / "gcs_server.out", f"something else\n{LINE}{LINE[:40]}")
    assert found.look() == 1
    write(logs / "gcs_server.out", LINE[40:])
    assert found.look() == 2, "a line that was half there"
    write(logs / "raylet.out", LINE)
    assert [found.look(), found.look()] == [3, 3]


def test_a_log_that_is_begun_anew_is_read_from_its_start(tmp_path: Path, logs: Path) -> None:
    found = UnauthenticatedRequests(tmp_path)
    write(logs / "raylet.out", LINE * 3)
    assert found.look() == 3
    (logs / "raylet.out").write_text(LINE)
    assert found.look() == 4


def test_a_number_that_could_not_be_told_is_told_later(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unauthenticated, "LOOK_SECONDS", 0.01)
    told: list[int] = []
    done = Event()

    def tell(count: int) -> None:
        told.append(count)
        if len(told) == 1:
            raise UserError("no head of a fleet answers")
        done.set()

    with counted(tmp_path, tell):
        write(logs / "raylet.out", LINE * 2)
        assert done.wait(PATIENCE_SECONDS)
    assert told == [2, 2]


def test_a_front_counts_them_beside_those_whom_it_refused_itself() -> None:
    client = FleetClient(EngineConfig(model="none"), Hosts(), Identity.make("front"), None)
    client.report_unauthenticated({"head": 1, "a": 2})
    client.report_unauthenticated({"head": 3})
    assert client.refusals == {("head", "no_token"): 3, ("a", "no_token"): 2}
