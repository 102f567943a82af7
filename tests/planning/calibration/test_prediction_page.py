"""Tests that the page on prediction has the errors that are stored beside the constants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "prediction_table.py"


def test_the_page_has_the_stored_errors() -> None:
    assert subprocess.run([sys.executable, SCRIPT, "--check"], check=False).returncode == 0
