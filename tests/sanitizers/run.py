"""The kernel tests under ASan, UBSan and TSan, each with a build of its own: `make sanitize`.

Prints what the sanitizers report and how long each took; exit code 1 where they do, or a test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILDS = ROOT / "build" / "sanitize"

FLAGS = "-O1 -g1 -fno-omit-frame-pointer -fsanitize={name}"

LIMITED = "memory or threads_that_do_not_start"
"""Tests that limit the address space (pytest's -k), of which two runtimes map terabytes for themselves."""

KERNELS = ("tests/kernels",)
WITH_THREADS = tuple(
    f"{KERNELS[0]}/test_{what}.py" for what in ("attention", "executor", "linear", "pool", "rows")
)
"""Those in which more threads run than the test's own; an executor runs the sampler, too."""


@dataclass(frozen=True)
class Sanitizer:
    """name: as GCC and Clang call it.  options: of its runtime, which reads them from `variable`."""

    name: str
    library: str
    variable: str
    options: tuple[str, ...]
    skipped: str = ""
    tests: tuple[str, ...] = KERNELS

    @property
    def build(self) -> Path:
        return BUILDS / self.name

    @property
    def reports(self) -> list[Path]:
        """A file for each process that had something to report."""
        return sorted(self.build.glob("report.*"))


SANITIZERS = (
    # The interpreter frees little at its end: leaks are not looked for.
    Sanitizer("address", "libasan.so", "ASAN_OPTIONS", ("detect_leaks=0",), LIMITED),
    Sanitizer("undefined", "libubsan.so", "UBSAN_OPTIONS", ("print_stacktrace=1",)),
    Sanitizer("thread", "libtsan.so", "TSAN_OPTIONS", ("second_deadlock_stack=1",), LIMITED, WITH_THREADS),
)


def main() -> None:
    wanted = [one for one in SANITIZERS if not sys.argv[1:] or one.name in sys.argv[1:]]
    verdicts = [is_clean(one) for one in wanted]
    if not all(verdicts):
        raise SystemExit(1)


def is_clean(sanitizer: Sanitizer) -> bool:
    """Builds, runs the tests, and tells."""
    begin = time.monotonic()
    module = build(sanitizer)
    for old in sanitizer.reports:
        old.unlink()
    built = time.monotonic()
    done = subprocess.run(tests(sanitizer), env=environment(sanitizer, module), cwd=ROOT, check=False)
    tested = time.monotonic()
    for report in sanitizer.reports:
        print(report.read_text(errors="replace"))
    clean = done.returncode == 0 and not sanitizer.reports
    print(
        f"sanitize: {sanitizer.name}: {'clean' if clean else 'NOT CLEAN'}: {len(sanitizer.reports)} reports, "
        f"exit code {done.returncode}; built in {built - begin:.0f} s, tested in {tested - built:.0f} s",
        flush=True,
    )
    return clean


def build(sanitizer: Sanitizer) -> Path:
    """The module with the sanitizer in it."""
    tools = Path(sys.executable).parent
    configure = [
        tools / "cmake", "-G", "Ninja", "-S", ROOT, "-B", sanitizer.build,
        "-DCMAKE_BUILD_TYPE=Sanitize",
        f"-DCMAKE_CXX_FLAGS_SANITIZE={FLAGS.format(name=sanitizer.name)}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
    ]  # fmt: skip
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    for command in (configure, [tools / "cmake", "--build", sanitizer.build]):
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout[-8000:] + done.stderr[-8000:])
    (module,) = sanitizer.build.glob("_native*.so")
    return module


def environment(sanitizer: Sanitizer, module: Path) -> dict[str, str]:
    """The interpreter is not built with the sanitizer, nor in C++: the runtime has to be loaded before
    all else, and looks for the functions that throw in libstdc++."""
    options = (*sanitizer.options, f"log_path={sanitizer.build / 'report'}")
    return {
        **os.environ,
        "COREPIPE_SANITIZED": str(module),
        "PYTHONPATH": str(HERE),
        "LD_PRELOAD": f"{found(sanitizer.library)} {found('libstdc++.so.6')}",
        sanitizer.variable: ":".join(options),
        "OPENBLAS_NUM_THREADS": "1",
    }


def found(library: str) -> str:
    """Where the compiler has it."""
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, f"-print-file-name={library}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def tests(sanitizer: Sanitizer) -> list[str]:
    """The kernel tests; addresses are not random, as TSan's shadow has a fixed place."""
    plain = ["setarch", "--addr-no-randomize"] if shutil.which("setarch") else []
    workers = ["--numprocesses", os.environ.get("WORKERS", "2"), "--dist", "loadfile"]
    chosen = ["-k", f"not ({sanitizer.skipped})"] if sanitizer.skipped else []
    return [*plain, sys.executable, "-m", "pytest", *workers, *sanitizer.tests, *chosen]


if __name__ == "__main__":
    main()
