from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from corepipe.bench.assertions import Assertion
from corepipe.bench.report import KEYS
from corepipe.cli.app import app
from corepipe.errors import UserError
from tests.bench.stub import running
from tests.servers import PATIENCE_SECONDS, TINY, Served, command, served, until

SMALL = ["--requests", "12", "--input-len", "20", "--output-len", "5"]


@pytest.fixture(scope="module")
def stub() -> Iterator[str]:
    with running(first=0.02, gap=0.002, pad=1) as url:
        yield url


@pytest.fixture(scope="module")
def corepipe() -> Iterator[Served]:
    with served(TINY) as server:
        yield server


def bench(*arguments: object) -> Result:
    """The command in this process: starting one takes longer than most of these load tests."""
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_a_table_for_people_and_files(stub: str, tmp_path: Path) -> None:
    shown = bench(stub, *SMALL, "--slo", "ttft:500ms tpot:50ms", "--output", tmp_path / "out")
    assert shown.exit_code == 0, shown.stderr
    for words in (
        "stub at http",
        "time to first token",
        "12 answered",
        "goodput",
        "8 at a time",
        "240 in, 60 out",
    ):
        assert words in shown.stdout
    assert "12 requests: the 99th percentile is the slowest of them" in shown.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert len(result["ttfts"]) == len(result["itls"]) == 12
    assert (tmp_path / "out" / "requests.csv").read_text().count("\n") == 13
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    conditions = ["--assert", "failed==0", "--assert", "p99_ttft_ms<60000"]
    again = bench(stub, *SMALL, "--compare", tmp_path / "out", *conditions)
    assert again.exit_code == 0
    assert "now / then" in again.stdout


def test_conditions_decide_the_exit_code(stub: str) -> None:
    missed = bench(stub, *SMALL, "--rate", "inf", "--json", "--assert", "mean_ttft_ms<1")
    assert missed.exit_code == 3
    assert "not met: mean_ttft_ms<1, it is " in missed.stderr
    assert json.loads(missed.stdout)["request_rate"] == "inf"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_what_was_measured_is_told_when_it_is_interrupted(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    log = tmp_path / "sent.jsonl"
    load = ["--duration", 600, "--input-len", 20, "--output-len", 5, "--concurrency", 2]
    with running(first=0.02, gap=0.002, log=str(log)) as url:
        asked = command("bench", url, *load, "--json")
        with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert until(lambda: len(answered(log)) >= 10)
                process.send_signal(number)
                told, errors = process.communicate(timeout=PATIENCE_SECONDS)
            finally:
                process.kill()
        known = answered(log)
    assert process.returncode == code, errors
    document = json.loads(told)
    assert document["interrupted"] is True
    assert len(known) - 2 <= document["completed"] <= len(known)
    assert document["unfinished"] <= 2
    assert "interrupted: " in errors


def answered(log: Path) -> list[str]:
    """The ids of the load's own requests, which begin after two probes; as far as whole lines are written."""
    ids = re.findall(r'{"id": "(.*?)".*"whole": true}$', log.read_text(), re.MULTILINE)
    return [one for one in ids if re.fullmatch(r"bench-\w+-0-\d+", one)]


def test_a_corepipe_tells_its_predictions(corepipe: Served) -> None:
    shown = bench(corepipe.url, "--requests", 6, "--input-len", 30, "--output-len", 8, "--json")
    document = json.loads(shown.stdout)
    assert document["completed"] == 6, shown.stderr
    assert (document["total_input_tokens"], document["total_output_tokens"]) == (180, 48)
    assert document["prompts"].startswith("token ids, by the server's /tokenize")
    assert document["server"]["emulated"] is document["device"]["emulated"] is True
    assert document["device"]["p50_ttft_ms"] > 0
    assert document["device"]["steps"] > 0


def test_conversations_with_a_corepipe(corepipe: Served) -> None:
    asked = ["--requests", 8, "--turns", 2, "--prefix-tree", "1x40", "--input-len", 20, "--output-len", 5]
    shown = bench(corepipe.url, "--api", "completions", "--concurrency", 2, *asked, "--json")
    document = json.loads(shown.stdout)
    assert document["completed"] == 8, shown.stderr
    assert document["total_cached_tokens"] > 0


def test_a_sweep(stub: str) -> None:
    """At rates at which no stage has as many requests as a server may be behind with."""
    asked = ["--sweep", "--rate", "4,2", "--duration", "0.6", "--output-len", "2", "--input-len", "5"]
    shown = bench(stub, *asked, "--assert", "sustained_request_rate>=4")
    assert shown.exit_code == 0, shown.stderr
    assert "The server kept up with every rate." in shown.stdout


def test_nobody_is_answered() -> None:
    with running(first=5.0) as url:
        refused = bench(url, *SMALL, "--timeout", "0.2")
    assert isinstance(refused.exception, UserError)
    assert "does not answer a first request: timeout" in refused.exception.message


def test_fields_that_a_server_does_not_take(corepipe: Served) -> None:
    shown = bench(corepipe.url, *SMALL, "--extra-body", '{"no_such_field": 1}')
    assert isinstance(shown.exception, UserError)
    assert "no_such_field" in shown.exception.message
    assert "--extra-body" in shown.exception.message


SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks" / "load").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_ask_for_what_there_is(script: Path) -> None:
    """Each of their commands, as `echo` hears it, is one that `corepipe bench` takes."""
    told = subprocess.run(
        [script, "http://here", "--seed", "5"],
        capture_output=True,
        text=True,
        check=True,
        env={"COREPIPE": "echo"},
    )
    group: Any = typer.main.get_command(app)
    for line in told.stdout.splitlines():
        name, *words = shlex.split(line.replace("ttft:1s tpot:100ms", "'ttft:1s tpot:100ms'"))
        given = group.commands[name].make_context(name, words).params
        assert (given["url"], given["seed"]) == ("http://here", 5)
        for text in given["assertions"] or ():
            Assertion.parse(text).check(KEYS)
