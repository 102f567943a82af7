"""Output without UTF-8: every command writes ASCII for what it draws, and fails on nothing."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corepipe.cli.output.plain import PLAIN
from tests.bench import stub
from tests.cli.test_main import COMMANDS
from tests.cli.test_predict import ROW
from tests.cli.test_reading import PLACED
from tests.servers import TINY, command, served
from tests.serving.http_support import FakeEngine, running

EACH = """
import json, os, sys
from corepipe.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    print("\\nRAN", *arguments, flush=True)
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        assert not end.code, (arguments, end.code)
"""
"""Several commands in one process: starting one takes longer than most of them."""

SMALL_PLAN = "--rate 0.1 --input-len 16 --output-len 4 --requests 9 --instance inf2.xlarge"
ENVIRONMENTS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "the C locale": {"LC_ALL": "C"},
}
CASES = [
    ("the C locale", True),  # where any character would be written that has no stand-in
    ("latin-1", False),
    ("ascii", False),
    pytest.param("latin-1", True, marks=pytest.mark.slow),
    pytest.param("ascii", True, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[str]]]:
    """One of each that ends by itself; `monitor` prints JSON, which is ASCII anywhere."""
    folder = tmp_path_factory.mktemp("plain")
    rows = folder / "rows.csv"
    with rows.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(ROW))
        writer.writeheader()
        writer.writerows([ROW, ROW | {"batch_size": "16", "value": "20"}])
    with running(FakeEngine(), ready=PLACED) as fake, stub.running(first=0.0, gap=0.0, pad=1) as loaded:
        yield [
            *([*name.split(), "--help"] for name in COMMANDS),
            ["top", fake, "--interval", "100ms"],
            ["ls", "--instance", "trn1.32xlarge"],
            ["bench", loaded, "--requests", "4", "--input-len", "8", "--output-len", "4", "--slo", "ttft:9s"],
            ["simulate", "llama-3.2-1b", "--requests", "4", "--plot", str(folder / "plot.html")],
            ["profile", "llama-3.2-1b"],
            ["validate", str(rows)],
            ["predict", str(rows), "--output", str(folder / "predicted.csv")],
            ["fit", str(rows), "--output", str(folder / "fitted.json")],
            ["pull", str(TINY)],
            ["plan", "llama-3.2-1b", "--ttft", "9s", *SMALL_PLAN.split()],
        ]  # fmt: skip


@pytest.mark.parametrize(("name", "whole"), CASES)
def test_every_command_writes_ascii(name: str, whole: bool, commands: list[list[str]]) -> None:
    """All of them, or one that draws."""
    asked = (
        commands
        if whole
        else [command for command in commands if command[0] == "top" and "--interval" in command]
    )
    unset = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(asked)],
        capture_output=True,
        check=False,
        env=unset | ENVIRONMENTS[name],
        timeout=300,
    )
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0, said
    assert "Traceback" not in said
    assert (done.stdout + done.stderr).isascii()
    assert done.stdout.count(b"\nRAN ") == len(asked)


def test_what_is_the_users_stays_as_it_is(tmp_path: Path) -> None:
    """A path is for programs: in the stream's own encoding, or the file system's."""
    model = tmp_path / "modèle"
    model.symlink_to(TINY)
    for environment, encoding in (
        ({"PYTHONIOENCODING": "latin-1"}, "latin-1"),
        ({"LC_ALL": "C"}, "utf-8"),
        ({"PYTHONIOENCODING": "utf-8", "LC_ALL": "C"}, "utf-8"),
    ):
        done = subprocess.run(
            command("pull", model), capture_output=True, env=os.environ | environment, check=True
        )
        assert done.stdout == f"{model}\n".encode(encoding)
    done = subprocess.run(
        command("pull", model),
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert done.stdout.endswith(b"/mod\\xe8le\n")


def test_a_server_says_so_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with served(TINY) as server:
        server.end()
    assert "".join(server.stderr).isascii()
    assert any("ready in" in line for line in server.stderr)


def test_every_stand_in_is_ascii() -> None:
    assert all(symbol.isascii() and not known.isascii() for known, symbol in PLAIN.items())
