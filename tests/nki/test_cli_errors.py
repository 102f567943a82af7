"""`corepipe nki` and files that cannot be run: a line on stderr that says what to change, and exit code 2."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.nki.kernels import LEGACY, REFERENCE, kernel_that, written
from tests.servers import PATIENCE_SECONDS, command, until

KERNELS = {
    "for ever": (
        "while True:\n    try:\n        x = x\n    except BaseException:\n        pass",
        "--timeout-s 1",
        r"k\.py(:\d+)?: takes more than 1 s \(--timeout-s\)",
    ),
    "asleep": (
        "import time\ntime.sleep(1000)",
        "--timeout-s 1",
        r"k\.py(:\d+)?: takes more than 1 s \(--timeout-s\)",
    ),
    "100 GB": ("import numpy\nnumpy.ones(10**11, 'u1')", "", "k.py:6: takes more than 8 GiB of memory"),
    "a buffer of 100 GB": (
        "nl.ndarray((128, 10**9), dtype=nl.uint8, buffer=nl.shared_hbm)",
        "",
        "k.py:5: takes more than 8 GiB of memory (--memory-gib)",
    ),
    "growing": (
        "kept = []\nwhile True: kept.append(bytes(10**7))",
        "--memory-gib 0.5",
        "k.py:6: takes more than 0.5 GiB of memory (--memory-gib)",
    ),
    "a file": ("open('made.txt', 'w')", "", "k.py:5: changes the file made.txt, which a kernel may not"),
    "a file, by the system": (
        "import os\nos.write(os.memfd_create('m'), b'x')",
        "",
        "k.py:6: writes a file, which a kernel may not",
    ),
    "a file less": ("import os\nos.remove('k.py')", "", "k.py:6: changes the file k.py"),
    "an import": ("import no_such_module", "", "k.py:5: imports no_such_module, which is not installed here"),
    "an unknown API": ("nl.frobnicate(x)", "", "k.py:5: nl.frobnicate is not supported"),
    "an unknown name": ("from neuronxcc.nki.language import nope", "", "k.py:5: nl.nope is not supported"),
    "an error": ("raise ValueError('of two\\nlines')", "", "k.py:5: ValueError: of two"),
    "an exit": ("raise SystemExit(0)", "", "k.py:5: ends the process (exit code 0)"),
    "an end at once": ("import os\nos._exit(0)", "", "k.py: its process ended with exit code 0"),
    "a crash": ("import ctypes\nctypes.string_at(0)", "", "k.py: its process ended by SIGSEGV"),
}


def refused(arguments: str, folder: Path) -> str:
    """Returns the only line that a command prints in a folder, which it leaves as it is."""
    before = sorted(folder.iterdir())
    done = subprocess.run(
        command("nki", *arguments.split()),
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, cwd=folder,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert sorted(folder.iterdir()) == before
    return done.stderr


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_cannot_be_run_is_a_line(name: str, tmp_path: Path) -> None:
    does, flags, says = KERNELS[name]
    written(tmp_path, "k.py", kernel_that(does))
    line = refused(f"k.py --inputs 128x512 {flags}", tmp_path)
    assert says in line or re.search(says, line)


FILES = {
    "good.py": LEGACY + REFERENCE,
    "bare.py": LEGACY,
    "two.py": LEGACY + LEGACY.replace("scaled", "other"),
    "none.py": "def f(x):\n    return x\n",
    "syntax.py": "def f(:\n",
    "torch_inside.py": "import torch\n",
    "raises.py": "1 / 0\n",
}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("nothing.py", "nothing.py: No such file or directory"),
        (".", ".: Is a directory"),
        ("syntax.py", "syntax.py:1: invalid syntax"),
        ("raises.py", "raises.py:1: ZeroDivisionError: division by zero"),
        (
            "torch_inside.py",
            "torch_inside.py:1: imports torch, which is not installed here; a kernel's file can",
        ),
        ("two.py", "two.py: has several kernels; name one of them with --entry: scaled, other"),
        ("none.py", "none.py: has no function with @nki.jit; name one of its functions with --entry: f"),
        (
            "good.py --entry nope",
            "good.py: has no function nope; name one of its functions with --entry: scaled",
        ),
        ("good.py:nope", "good.py: has no function nope"),
        ("bare.py", "bare.py: scaled takes x, factor=2.0; give these with --inputs, as shapes"),
        ("bare.py --inputs 3x", "--inputs: 3x is neither a shape"),
        ("bare.py --inputs 4x4:float33", "--inputs: there is no type float33"),
        (
            "bare.py --inputs 4x4,1,2",
            "--inputs: bare.py: scaled(x, factor=2.0): too many positional arguments",
        ),
        ("bare.py --inputs nothing.py:f", "nothing.py: No such file or directory"),
        ("bare.py --inputs good.py:nope", "--inputs good.py:nope: good.py has no function nope"),
        ("bare.py --inputs 999999x999999", "bare.py: takes more than 8 GiB of memory"),
        ("bare.py --inputs 64x512", "bare.py:12: "),
        ("good.py --check good.py", "--check good.py: give a function as FILE.py:FUNCTION"),
        ("good.py --check good.py:nope", "--check good.py:nope: good.py has no function nope"),
        ("good.py --check good.py:reference --no-values", "--check compares values; leave --no-values out"),
        ("good.py --grid 2x0", "--grid 2x0: give the number of programs"),
        ("good.py --target trn9", "'--target': 'trn9' is not one of 'trn1', 'inf2', 'trn2', 'trn3'"),
        ("good.py --trace nowhere/x", "--trace nowhere/x: there is no directory nowhere"),
        ("good.py good.py --trace x", "--trace: give one file"),
    ],
)
def test_a_command_that_cannot_be_run_is_a_line(arguments: str, says: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        written(tmp_path, name, text)
    assert says in refused(arguments, tmp_path)


ENDLESS = "import os, time\nprint('process', os.getpid())\nwhile True: time.sleep(1)"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_kernel_ends_with_its_command(number: signal.Signals, code: int, tmp_path: Path) -> None:
    file = written(tmp_path, "k.py", kernel_that(ENDLESS))
    with subprocess.Popen(
        command("nki", file, "--inputs", "4x4"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        pid = int(process.stderr.readline().removeprefix("process "))
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == code
        if code > 0:
            assert process.stderr.read().endswith("corepipe: interrupted\n")
    until(lambda: not psutil.pid_exists(pid))
