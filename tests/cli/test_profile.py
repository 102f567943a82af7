"""`corepipe profile` from outside: its table, its JSON, its file, and what it says to wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.perfetto_reader import read
from tests.servers import run


def test_json_and_timeline(tmp_path: Path) -> None:
    path = tmp_path / "trace.pftrace"
    done = run(
        "profile", "smollm2-135m", "--instance", "inf2.48xlarge", "--tensor", "3", "--pipeline", "2",
        "--data", "1", "--output-steps", "2", "--json", "-o", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["emulated"] is True
    assert found["trace"] == str(path)
    assert {key: found["placement"][key] for key in ("pipeline", "tensor", "data")} == {
        "pipeline": 2, "tensor": 3, "data": 1,
    }  # fmt: skip
    assert [part["phase"] for part in found["summary"]] == ["prefill", "decode"]
    assert {"total_time", "mfu_estimated_percent", "mbu_estimated_percent"} <= set(found["summary"][0])
    assert found["bottlenecks"]
    tracks = read(path)
    replica = next(t for (process, _), t in tracks.items() if process.startswith("smollm2-135m"))
    steps = [round(step["seconds"] * 1e9) for step in found["steps"]]
    assert [piece.end - piece.start for piece in replica.at(0)] == pytest.approx(steps, abs=1)


def test_the_table_is_labelled_as_emulated() -> None:
    shown = run("profile", "smollm2-135m", "--output-steps", "1", "--batch", "1").stdout
    assert "inf2.xlarge (emulated)" in shown
    assert "mfu_estimated_percent" in shown
    assert "- decode: " in shown


def test_an_encoder_needs_no_room_for_answers() -> None:
    shown = run("profile", "bert-base", "--input-len", "512", "--batch", "1", "--json")
    assert [step["phase"] for step in json.loads(shown.stdout)["steps"]] == ["prefill"]
