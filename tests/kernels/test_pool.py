"""The pool's contract: memory is reserved before a region, and threads that do not start are an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from corepipe.kernels import _native

PREAMBLE = """
import mmap, os, resource, sys
import numpy as np
from corepipe.kernels import _native
from corepipe.kernels.packing import pack
from tests.kernels.harness import AttentionRig, i32, value

def mapped():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE

def limit(more):
    most = resource.RLIM_INFINITY if more is None else mapped() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

def threads():
    return len(os.listdir("/proc/self/task"))
"""

LINEAR = """
k, rows = 40_000, int(sys.argv[1])
weights = np.random.default_rng(1).standard_normal((64, k)).astype(np.float32)
matrix = _native.Matrix("fp32", pack("fp32", weights), None, 64, k)
program = _native.Program([k, 64], rows, False)
program.embed(0, np.random.default_rng(2).standard_normal((8, k)).astype(np.float32))
program.linear(0, [(matrix, None, 1)])
executor = _native.Executor(_native.Pool(4), [program], 1, 64)
batch = np.arange(rows, dtype=np.int32)

def run():
    ticket = executor.submit(batch % 8, batch, i32(0, rows), i32(0).reshape(1, 1), batch[:1], None)
    executor.wait(ticket)
    return value(program, 1)[:rows].copy()
"""

ATTENTION = """
rig = AttentionRig(1024, 1, 512, max_rows=40, blocks=8, threads=4)
sequence = rig.sequence(np.random.default_rng(3), 40, range(8))

def run():
    return rig.run(sequence, 40)
"""

STARVED = """
limit(512 << 10)
try:
    run()
except MemoryError:
    print("refused")
finally:
    limit(None)
first = run()
assert np.array_equal(first, run()) and np.isfinite(first).all()
print("went on")
"""


def in_a_child(code: str, *arguments: object) -> str:
    """Returns the output of code in a process of its own, which must exit with 0."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.parametrize("rows", [4, 600], ids=["columns", "chain"])
def test_a_linear_that_finds_no_memory_is_an_error_and_no_more(rows: int) -> None:
    assert in_a_child(LINEAR + STARVED, rows).split("\n") == ["refused", "went on", ""]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
def test_an_attention_that_finds_no_memory_is_an_error_and_no_more() -> None:
    assert in_a_child(ATTENTION + STARVED).split("\n") == ["refused", "went on", ""]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
def test_threads_that_do_not_start_are_an_error_that_leaves_none() -> None:
    """Each thread's stack takes address space, which suffices for a few threads and not for all."""
    code = """
before = threads()
limit(64 << 20)
for attempt in range(3):
    try:
        _native.Pool(64)
    except RuntimeError as error:
        print(error)
    assert threads() == before, threads()
limit(None)
pool = _native.Pool(8)
assert threads() == before + 8
pool.close()
"""
    lines = in_a_child(code).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("only ")
        assert "of 64 threads could be started" in line
        assert 1 <= int(line.split()[1]) < 64


@pytest.mark.parametrize("threads", [0, -1])
def test_a_pool_needs_a_thread(threads: int) -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        _native.Pool(threads)


def test_beats_must_be_aligned() -> None:
    shifted = np.zeros(24, np.uint8)[4:12].view(np.int64)
    if shifted.ctypes.data % 8 == 0:
        shifted = np.zeros(24, np.uint8)[1:9].view(np.int64)
    with pytest.raises(ValueError, match="aligned to 8 bytes"):
        _native.Pool(1, shifted)
