"""The command as a whole: help, version, wrong flags, a reader that goes away."""

from __future__ import annotations

import subprocess

import pytest
import typer.main

import corepipe
from corepipe.cli import app
from tests.servers import command, run

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_version() -> None:
    assert run("--version").stdout == f"corepipe {corepipe.__version__}\n"


def test_every_command_is_listed() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert [name for name in COMMANDS if name not in shown.stdout] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps(name: str) -> None:
    shown = run(name, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"corepipe {name}" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["sevre"], "sevre"),
        (["serve", "--prot", "1"], "--prot"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--dtype", "int4"], "int8-weights"),
        (["serve", "--pipeline", "0"], "--pipeline"),
        (["serve", "--threads", "100000"], "--threads"),
        (["serve", "--block-size", "17"], "--block-size"),
        (["serve", "--chat-template", "nowhere.jinja"], "nowhere.jinja"),
        (["ls", "--instance", "inf2.2xlarge"], "inf2.xlarge"),
        (["ls", "--url", "http://127.0.0.1:9"], "--url"),
        (["pull", "no/such/model"], "no/such/model"),
    ],
)
def test_what_the_user_got_wrong_is_named(arguments: list[str], named: str) -> None:
    refused = run(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert named in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_reader_that_goes_away_is_no_crash() -> None:
    shell = " ".join(command("ls", "--instance", "trn2.48xlarge", "--json")) + " | head -c 1"
    shown = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert (shown.stdout, shown.stderr) == ("[", "")
