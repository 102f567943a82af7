"""The console blocks of the documents run as they are printed, wherever what they need is here."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PATIENCE_SECONDS, Served, default_model, run, served
from tests.test_docs import DOCS, ROOT, TOP
from tests.tiny_encoders import write_bert

PAGES = [*TOP, *sorted(DOCS.glob("*.md"))]
ASKED = {"model": "smollm2-135m-instruct", "prompt": "Hi", "max_tokens": 2}
PRINTED_URL = "http://127.0.0.1:8000"
NOT_HERE = {
    "make": "sets up the tree that tests run in",
    "docker": "needs a container engine",
    "kubectl": "needs a cluster",
    "helm": "needs a cluster; tests/deploy renders the chart",
    "pip": "changes the environment",
    "pytest": "is a user's own suite; test_pytest_plugin.py runs one",
    ".venv/bin/python": "a benchmark beside servers that are not here",
    "corepipe serve path/to": "a model that is not here",
    "corepipe nki kernels.py": "a kernel that is not here",
    "corepipe serve MODEL": "a model that is not here",
    "printf": "an image that is not here",
    "export": "settings of an agent",
    "claude": "an agent, which make clients-agents runs",
}
"""Beginnings of commands that are not run, and why."""


def commands(page: Path) -> Iterator[str]:
    """The commands of a page's console blocks, without comments, each on one line."""
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        so_far = ""
        for line in block.splitlines():
            so_far += line
            if so_far.endswith(("\\", "|")) or not _closed(so_far):
                so_far = so_far.removesuffix("\\")
                continue
            if shlex.split(so_far, comments=True):
                yield so_far
            so_far = ""


def _closed(text: str) -> bool:
    """True if all quotes of a line end in it."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _plain(command: str) -> str:
    return command.replace(".venv/bin/corepipe", "corepipe")


def runnable(page: Path) -> list[str]:
    found = [_plain(command) for command in commands(page)]
    return [command for command in found if not command.startswith(tuple(NOT_HERE))]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(default_model()) as running:
        yield running


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server that answers with vectors and ranks."""
    with served(write_bert(tmp_path_factory.mktemp("encoder"), max_position_embeddings=512)) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which all of them run, with the files that some of them read."""
    made = tmp_path_factory.mktemp("blocks")
    (made / "examples").symlink_to(ROOT / "examples")
    trace = ["--write-trace", str(made / "azure.csv"), "--trace-format", "azure"]
    assert run("simulate", "llama-3.1-8b", "--rate", "5", "--requests", "50", *trace).returncode == 0
    return made


def test_every_command_is_run_or_known_not_to_be_here() -> None:
    found = [_plain(command) for page in PAGES for command in commands(page)]
    assert len(found) > 40
    assert all(command.startswith(("corepipe ", "curl ", *NOT_HERE)) for command in found), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if runnable(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_of_a_page_run(page: Path, server: Served, encoder: Served, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in runnable(page):
        words = shlex.split(command, comments=True)
        if words[:2] == ["corepipe", "serve"]:
            flags = (str(folder / word) if word == "cassettes" else word for word in words[2:])
            with served(*flags) as started:
                if "--record" in words:  # what the commands after it replay
                    assert started.post("/v1/completions", json=ASKED).status_code == 200
            continue
        url = encoder.url if "--api" in words else server.url
        told = command.replace(PRINTED_URL, url).replace("--duration 60", "--duration 3")
        if words[:2] == ["corepipe", "ls"]:
            told = f"corepipe ls --url {server.url}"
        done = subprocess.run(
            ["bash", "-euc", told], cwd=folder, env={**os.environ, "PATH": path}, check=False,
            capture_output=True, text=True, timeout=20 * PATIENCE_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{told}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, told
