"""Programs and times do not depend on the CPU: neither on numpy's instructions nor on the order of sets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.digest.check import other_machine, part
from tests.digest.models import ROOT

TESTS = ("tests/digest/test_programs.py", "tests/digest/test_times.py")


@pytest.mark.digest
def test_programs_and_times_are_the_same_on_another_machine() -> None:
    if not part("times").entries:
        pytest.skip("nothing is frozen yet")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "digest or not digest",
        "-k",
        "model_of_each_family",
    ]
    done = subprocess.run(
        [*command, *TESTS],
        env={**os.environ, **other_machine()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
