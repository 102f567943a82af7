"""The command as a whole: help, version, wrong flags, a reader that goes away."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import corepipe
from corepipe.cli.app import app
from tests import warm
from tests.cli_page import named
from tests.servers import PATIENCE_SECONDS, TINY, command, run

COMMANDS = sorted(named())


INTERRUPTED_AT = """
import os, signal, sys
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupter())
"""
"""A sitecustomize module that sends Ctrl-C at the moment at which a module is imported."""


def test_commands_of_this_run_are_forked() -> None:
    """No module of the tests has changed what a command would import; a new process takes thrice as long."""
    assert warm.does(os.environ)


def test_the_version() -> None:
    assert run("--version").stdout == f"corepipe {corepipe.__version__}\n"


def imported_by(*arguments: str) -> set[str]:
    """The modules that the command has imported at its end."""
    script = (
        "import atexit, sys\n"
        "from corepipe.__main__ import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.argv = {['corepipe', *arguments]!r}\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_nothing_that_only_a_command_needs() -> None:
    found = imported_by("--help")
    assert {f"corepipe.cli.{name}" for name in ("serve", "plan", "pull")} < found
    assert found & {"numpy", "pydantic", "httpx", "jinja2", "asyncio", "ssl"} == set()
    assert {name for name in found if name.startswith("corepipe.neuron")} == set()


def test_a_command_imports_no_other() -> None:
    found = imported_by("cache", "ls", "--help")
    others = {f"corepipe.cli.{name.split()[0]}" for name in COMMANDS} - {"corepipe.cli.cache"}
    assert found & others == set()
    assert "corepipe.cli.cache" in found


def loaded_by(*modules: str) -> set[str]:
    """The modules that these import, by their names."""
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_an_engine_is_there_before_anything_large_is_imported() -> None:
    found = loaded_by("corepipe.cli.app", "corepipe.cli.run.serve", "corepipe.cli.start.starting")
    assert found & {"numpy", "asyncio", "ssl", "rich", "prometheus_client", "starlette", "uvicorn"} == set()


def test_a_server_imports_nothing_that_only_some_servers_need() -> None:
    found = loaded_by("corepipe.cli.start.launch")
    assert {"corepipe.serving.api.app", "corepipe.models.registry"} < found
    several, engine = "corepipe.cli.start.shares", "corepipe.engine.assembly.assembly"
    assert found & {several, engine, "corepipe.neuron.host.executor", "corepipe.scheduler.scheduler"} == set()
    cassettes = "corepipe.serving.api.cassettes.server_cassettes"
    assert found & {cassettes, "corepipe.cli.start.replay", "rich.progress"} == set()
    assert found & {"httpx", "jinja2", "transformers", "llguidance"} == set()


def test_an_engine_imports_nothing_that_reads_text() -> None:
    found = loaded_by("corepipe.engine.assembly.assembly", "corepipe.engine.process.session")
    assert "corepipe.neuron.host.executor" in found
    assert found & {"tokenizers", "llguidance", "jinja2", "transformers", "asyncio", "rich", "typer"} == set()


def test_every_command_is_listed() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert [name for name in COMMANDS if name.split()[0] not in shown.stdout] == []


@pytest.mark.parametrize("width", ["60", "80", "150"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_each_flag_whole_at_any_width(
    name: str, width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", int(width))
    done = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="corepipe")
    assert (done.exit_code, done.stderr, f"corepipe {name}" in (shown := done.stdout)) == (0, "", True)
    flags = {flag for parameter in named()[name].params for flag in parameter.opts if flag.startswith("--")}
    assert flags <= set(re.findall(r"--[a-z][a-z0-9-]*", shown))
    assert "…" not in shown
    assert "\\[" not in shown


def test_without_a_command_it_helps() -> None:
    shown = run()
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.replace("\n", "") == run("--help").stdout.replace("\n", "")


@pytest.mark.parametrize("module", ["typer", "corepipe.cli.serve", "uvicorn", "corepipe.models.registry"])
def test_an_interrupt_while_it_starts_is_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_AT.format(module=module))
    ended = run("serve", TINY, "--port", 0, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "corepipe: interrupted\n")


def test_an_interrupt_while_extension_modules_are_imported_is_one_line(tmp_path: Path) -> None:
    """numpy's would make an ImportError of it."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_AT.format(module="numpy._core.overrides"))
    ended = run("cache", "ls", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "corepipe: interrupted\n")


def redirected(arguments: list[str], where: str) -> subprocess.CompletedProcess[str]:
    """A command whose standard output a shell leads somewhere; the code is the command's."""
    shell = f"set -o pipefail; {shlex.join(command(*arguments))} {where}"
    return subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.mark.parametrize("arguments", [["ls", "--instance", "trn2.48xlarge", "--json"], ["serve", "--help"]])
def test_a_reader_that_goes_away_is_no_crash(arguments: list[str]) -> None:
    shown = redirected(arguments, "| head -c 1")
    assert (len(shown.stdout), shown.stderr) == (1, "")
    assert shown.returncode in {0, 1}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["serve", "--help"],
        ["cache", "--help"],
        ["ls", "--instance", "inf2.xlarge"],
        ["ls", "--instance", "inf2.xlarge", "--json"],
        ["cache", "ls"],
    ],
)
def test_a_result_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    full = redirected(arguments, "> /dev/full")
    assert (full.returncode, full.stderr) == (1, "corepipe: standard output: No space left on device\n")


def test_progress_and_errors_that_cannot_be_written_change_no_code() -> None:
    done = redirected(["simulate", str(TINY), "--requests", "1", "--input-len", "8"], "2> /dev/full")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 1 requests answered" in done.stdout
    assert redirected(["cache"], "2> /dev/full").returncode == 2


@pytest.mark.parametrize("where", [">&-", "<&- >&-"])
def test_streams_that_are_closed_lead_nowhere(where: str) -> None:
    closed = redirected(["ls", "--instance", "inf2.xlarge"], where)
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")
