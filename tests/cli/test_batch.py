"""`corepipe batch`: a file of requests without a server, interrupted and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.test_batches import lines_of
from tests.servers import TINY, command, run, until


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines_of(200)))
    return path


def batch(source: Path, target: Path, *more: object) -> tuple[object, ...]:
    return ("batch", "-i", source, "-o", target, "--model", TINY, "--served-model-name", "tiny", *more)


def texts(path: Path) -> dict[str, str | int]:
    """The text of each line, or the status of its error; fails for a line that is there twice."""
    found: dict[str, Any] = {}
    for one in map(json.loads, path.read_text().splitlines()):
        assert one["custom_id"] not in found
        answer = one["response"]
        ok = answer["status_code"] == 200
        found[one["custom_id"]] = answer["body"]["choices"][0]["text"] if ok else answer["status_code"]
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_where_it_was(source: Path, tmp_path: Path, number: int) -> None:
    target = tmp_path / "out.jsonl"
    with subprocess.Popen(command(*batch(source, target)), stderr=subprocess.DEVNULL) as process:
        assert until(lambda: target.exists() and target.read_bytes().count(b"\n") >= 20)
        process.send_signal(number)
        code = process.wait()
    before = target.read_bytes()
    done = before.count(b"\n")
    assert code != 0 or done == 200  # on a busy machine it may have ended before
    target.write_bytes(before + b'{"id":"batch_req_torn')
    ended = run(*batch(source, target, "--json"))
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout)
    assert (counts["total"], counts["answered_before"]) == (200, done)
    assert counts["completed"] + counts["failed"] == 200 - done
    assert target.read_bytes().startswith(before)
    whole = tmp_path / "whole.jsonl"
    assert "of 200 lines 196 answered and 4 failed" in run(*batch(source, whole)).stdout
    assert texts(target) == texts(whole)


def test_a_torn_line_after_the_last_result_is_cut_off(source: Path, tmp_path: Path) -> None:
    """There is nothing left to compute, so that no engine is started."""
    target = tmp_path / "out.jsonl"
    assert run(*batch(source, target)).returncode == 0
    whole = target.read_bytes()
    target.write_bytes(whole + b'{"id":"batch_req_torn')
    assert run(*batch(source, target)).returncode == 0
    assert target.read_bytes() == whole
    assert "200 done before" in run(*batch(source, target)).stdout


def test_what_cannot_be_used_is_one_line_that_names_it(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    twice = tmp_path / "twice.jsonl"
    twice.write_text(source.read_text() + "\n" + source.read_text())
    for given, said in (
        ((tmp_path / "none", target), "--input"),
        ((twice, target), "line 201: custom_id 'line-0' is that of line 1 already"),
        ((source, source), "holds lines that are no results of a batch"),
        ((source, tmp_path / "no" / "out"), "there is no directory"),
        ((source, tmp_path), "is a directory"),
    ):
        ended = run(*batch(*given))
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
        assert said in ended.stderr
    assert not target.exists()
    target.write_text('{"id":"batch_req_0123456789abcdef_1",}\n')
    assert "line 1 of --input" in run(*batch(source, target)).stderr
