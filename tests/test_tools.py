"""Commands that set an environment up and hold CI to budgets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.servers import PATIENCE_SECONDS, until

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


@pytest.fixture
def set_up(tools: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with its logs in a directory of the test's."""
    import set_up as script  # noqa: PLC0415 -- it is no package

    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "LOGS", tmp_path)
    return script


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, TOOLS / "set_up.py", tmp_path / "venv", "run"],
        env={**os.environ, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("corepipe: there is no C++ compiler")
    assert "COREPIPE_WITHOUT_KERNELS=1" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_steps_run_after_those_that_they_need(set_up: ModuleType, tmp_path: Path) -> None:
    write = "import pathlib, sys; pathlib.Path({!r}).write_text('x')"
    first = set_up.Step("first", python(write.format(str(tmp_path / "a"))), 1)
    second = set_up.Step("second", python(f"open({str(tmp_path / 'a')!r}).read()"), 1, after=["first"])
    set_up.run_all([second, first])
    assert second.done() == (1, 1)


def test_a_step_that_fails_shows_the_end_of_its_log_and_ends_the_others(set_up: ModuleType) -> None:
    script = "import sys; print('line 1'); print('no such header', file=sys.stderr); sys.exit(3)"
    other = set_up.Step("model", python("import time; time.sleep(1000)"), 1)
    with pytest.raises(
        set_up.SetUpError, match=r"kernels: .* ended with 3:\n(.*\n)*    no such header\n.*kernels.log"
    ):
        set_up.run_all([other, set_up.Step("kernels", python(script), 1)])
    assert other.process is not None
    assert until(lambda: other.process.poll() is not None)


def test_progress_is_that_of_the_compiler(set_up: ModuleType) -> None:
    log = (
        "-- Configuring done\n[1/47] Building CXX object a.o\n[12/47] Building CXX object b.o\nnote: [3/4]\n"
    )
    assert set_up.compiled(log) == (12, 47)
    assert set_up.compiled("") == (0, 1)


@pytest.mark.parametrize(("processor", "code"), [(0.1, 0), (1e6, 1)])
def test_a_part_over_its_budget_fails(
    processor: float,
    code: int,
    tools: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import budget  # noqa: PLC0415 -- it is no package

    monkeypatch.setattr(budget, "SPENT", tmp_path)
    monkeypatch.setattr(budget, "speed", lambda _measure, _reference: 1.0)  # which takes seconds
    (tmp_path / "lint.json").write_text(json.dumps({"processor": processor, "clock": 1.0}))
    assert budget.report() == code
    said = capsys.readouterr()
    assert ("lint: more than" in said.err) == bool(code)


def test_what_a_command_took_is_noted_with_its_children(tools: None, tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    script = (
        f"import sys; sys.path.insert(0, {str(TOOLS)!r}); import budget, pathlib; "
        f"budget.SPENT = pathlib.Path({str(tmp_path)!r}); sys.exit(budget.run('lint', {python(burn)!r}))"
    )
    subprocess.run(python(script), check=True, timeout=PATIENCE_SECONDS)
    assert json.loads((tmp_path / "lint.json").read_text())["processor"] >= 0.2
