"""The pytest plugin as another project has it: pytest in a process of its own, in a directory of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.servers import PATIENCE_SECONDS, TINY, until

APP = """
def test_it_answers(openai_client, corepipe_model, corepipe_url):
    assert str(openai_client.base_url).rstrip("/") == corepipe_url
    answer = openai_client.chat.completions.create(
        model=corepipe_model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8
    )
    print("said:", answer.id, repr(answer.choices[0].message.content))

def test_it_is_the_same_server(corepipe_url):
    import urllib.request
    print("models:", urllib.request.urlopen(corepipe_url + "/models").read())
"""
NO_OPENAI = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "openai":
            raise ImportError("not installed")
sys.meta_path.insert(0, Blocker())
"""


def command(*arguments: object) -> list[str]:
    plugins = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:anyio")
    return [sys.executable, "-m", "pytest", "-s", "-q", *plugins, *map(str, arguments)]


def pytest_in(folder: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_ADDOPTS": "", **more}
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )


def project(folder: Path, tests: str, settings: str = "") -> Path:
    (folder / "pytest.ini").write_text("[pytest]\n" + textwrap.dedent(settings))
    (folder / "test_app.py").write_text(tests)
    return folder


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.lstrip(".") for line in done.stdout.splitlines() if "said:" in line or "models:" in line]


def test_it_records_by_the_command_line_and_replays_by_the_settings(tmp_path: Path) -> None:
    settings = f"corepipe_model = {TINY}\ncorepipe_replay = tapes\ncorepipe_args = --threads 1\n"
    folder = project(tmp_path, APP, settings)
    recorded = pytest_in(folder, "--corepipe-record", "tapes", COREPIPE_API_KEY="sk-of-someone")
    live = said(recorded)
    assert len(live) == 2
    assert f"'{TINY.name}'" not in live[0]
    assert f'"id":"{TINY.name}"' in live[1]
    assert [file.name.split("-")[0] for file in sorted((folder / "tapes").iterdir())] == ["chat", "models"]
    assert said(pytest_in(folder, COREPIPE_ISA="none of this machine's")) == live


WITHOUT_OPENAI = """
import sys

def test_nothing_of_the_server_is_loaded():
    loaded = {name for name in sys.modules if name.startswith("corepipe")}
    assert loaded <= {"corepipe", "corepipe.pytest", "corepipe.version"}, loaded
    assert "urllib.request" not in sys.modules

def test_a_client(openai_client):
    pass
"""


def test_who_does_not_use_it_pays_nothing_and_is_told_what_to_install(tmp_path: Path) -> None:
    """Before a server is started, which could not be here."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NO_OPENAI)
    done = pytest_in(
        project(tmp_path, WITHOUT_OPENAI, "corepipe_model = no-such-model\n"), PYTHONPATH=str(site)
    )
    assert re.search(r"^1 passed.* 1 error in ", done.stdout, re.MULTILINE)
    assert "needs the package openai: pip install openai" in done.stdout
    assert "the corepipe server" not in done.stdout


def test_a_server_that_does_not_start_is_explained(tmp_path: Path) -> None:
    folder = project(tmp_path, "def test_it(corepipe_url):\n    pass\n")
    done = pytest_in(folder, "--corepipe-replay", "tapes")
    assert done.returncode == 1
    assert "the corepipe server ended with exit code 2; its log:" in done.stdout
    assert f"--replay {folder / 'tapes'}: No such file or directory" in done.stdout


def test_either_it_records_or_it_replays(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "--corepipe-replay", "a", "--corepipe-record", "b")
    assert done.returncode == 4
    assert "choose one" in done.stderr


WAITS = """
import time
from pathlib import Path

def test_it(corepipe_url):
    Path("ready").touch()
    time.sleep(86400)
"""
CASSETTE = """\
{"cassette": 1, "request": {"method": "GET", "path": "/v1/models"}, "answer": {"status": 200,
 "headers": {"content-type": "application/json"}, "times_ms": [0.1], "body": {"data": []}}}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel sees to it on Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_server_ends_with_the_tests_however_they_end(tmp_path: Path, number: signal.Signals) -> None:
    folder = project(tmp_path, WAITS)
    (folder / "tapes").mkdir()
    (folder / "tapes" / "a.yaml").write_text(CASSETTE)
    quiet = subprocess.DEVNULL
    tests = subprocess.Popen(command("--corepipe-replay", "tapes"), cwd=folder, stdout=quiet, stderr=quiet)
    assert until((folder / "ready").exists)
    (server,) = psutil.Process(tests.pid).children(recursive=True)
    tests.send_signal(number)
    tests.wait(PATIENCE_SECONDS)
    psutil.wait_procs([server], PATIENCE_SECONDS)
    assert not server.is_running()
