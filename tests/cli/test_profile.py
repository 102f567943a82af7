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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["smollm2-135m", "--instance", "inf3.xlarge"], "unknown instance 'inf3.xlarge'; did you mean"),
        (["smollm2-153m"], "smollm2-135m"),
        (["smollm2-135m", "--pipeline", "31", "--instance", "inf1.24xlarge"], "choose at most 30"),
        (["llama-3.1-70b"], "does not fit the memory of inf2.xlarge; use --instance"),
        (["smollm2-135m", "--profile", "nothing"], "--profile nothing: no such file"),
        (["smollm2-135m", "--max-model-len", "100"], "use --max-model-len 515"),
        (["smollm2-135m", "--batch", "1", "-o", "/nowhere/trace"], "--output /nowhere/trace: there is no"),
        (["smollm2-135m", "--input-len", "8192"], "takes 8192 tokens; use --input-len 8189"),
        (["vit-base"], "takes 197 tokens; use --input-len 197"),
    ],
)
def test_what_is_wrong_is_one_line_with_what_works(flags: list[str], said: str) -> None:
    refused = run("profile", *flags)
    assert refused.returncode == 2
    message = next(line for line in refused.stderr.splitlines() if line.startswith("corepipe: "))
    assert said in message
    assert "Traceback" not in refused.stderr
