"""Tests again and again on a busy machine: `make busy ARGS=tests/x.py TIMES=20 NICE=5`.

Two loops that never pause take what they can of the processors; the tests may have a lower priority besides.
Prints what each failed run says, and how many passed; ends with 1 where one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator

LOOPS = 2
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with whoever started it, however that ends."""


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Runs tests beside busy loops; other arguments are pytest's."
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--nice", type=int, default=0, help="of the tests, not of the loops")
    parser.add_argument("--loops", type=int, default=LOOPS)
    args, tests = parser.parse_known_args()
    command = ["nice", "-n", str(args.nice), sys.executable, "-m", "pytest", *tests]
    passed = 0
    with busy_loops(args.loops):
        for number in range(1, args.times + 1):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            passed += done.returncode == 0
            if done.returncode:
                print(f"run {number}:\n{done.stdout}{done.stderr}")
            print(f"{passed} of {number} runs passed: {done.stdout.splitlines()[-1]}", flush=True)
    return int(passed < args.times)


if __name__ == "__main__":
    sys.exit(main())
