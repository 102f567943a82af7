"""The account of processor time at the end of a run, with a worker, as `make test` has them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BURNT = 0.125
PLUGIN = (
    "from tests.spent import Spent\ndef pytest_configure(config): config.pluginmanager.register(Spent())\n"
)
TESTS = f"""
import os, signal, subprocess, sys, time
import psutil
from tests import spent

BURN = "import time\\nwhile time.process_time() < {BURNT}: pass\\n"

def test_idle():
    time.sleep({BURNT})

def test_busy():
    subprocess.run([sys.executable, "-c", BURN], check=True)
    orphan = os.posix_spawn(sys.executable, [sys.executable, "-c", BURN.replace("{BURNT}", "60")], os.environ)
    while sum(psutil.Process(orphan).cpu_times()) < {BURNT}:
        time.sleep(0.01)
    spent.gone(psutil.Process(orphan))
    os.kill(orphan, signal.SIGKILL)
    end = time.process_time() + {BURNT}
    while time.process_time() < end: pass
"""


def test_the_busy_come_first_with_what_their_children_took(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_two.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TESTS_SPENT": str(tmp_path / "sums")}
    command = [sys.executable, "-m", "pytest", "-p", "no:corepipe", "-n", "1", "-W", "ignore"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    rows = re.findall(r"^ +[\d.]+ s +([\d.]+) s  test_two.py::(\w+)$", done.stdout, re.MULTILINE)
    assert [name for _, name in rows] == ["test_busy", "test_idle"]
    assert float(rows[1][0]) >= 0.1
    sums = json.loads((tmp_path / "sums").read_text())
    seconds, wall = sums["files"]["test_two.py"]
    assert sums["processor_seconds"] >= seconds >= 3 * BURNT
    assert wall >= 2 * BURNT
    assert re.search(r"^ +[\d.]+ s in all processes of 2 tests$", done.stdout, re.MULTILINE)
