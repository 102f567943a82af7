"""The memory that `freeze_heap` gives back, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

FREED = """
import gc
from pathlib import Path
from corepipe.engine.freeze_heap import freeze_heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

kept = [bytes(1000) for _ in range(20)]
for size in (1000, 100_000):  # many small pieces, and pieces between which one stays
    pieces = [bytes(size) for _ in range(40_000_000 // size)]
    kept.append(pieces[-1])
    del pieces
before = resident()
freeze_heap()
print(before - resident(), gc.get_freeze_count())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_free_memory_goes_back_and_the_rest_is_frozen() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    given_back, frozen = map(int, done.stdout.split())
    assert given_back > 20_000_000
    assert frozen > 1000
