"""The kernels' tests under sanitizers: `make sanitize`, or `make sanitize-thread` for one of the builds.

They run in their short form, as on another ISA: every loop with its ends, and not each product of shapes and
formats again; `make sanitize WHOLE=1` runs them all.

ASan and UBSan are one build, TSan is another.  Prints their reports and how long it took; exit code 1 where
there is a report, where a test fails, or where a sanitizer does not report a deliberate fault.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.kernels.harness import FEW

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILDS = ROOT / "build" / "sanitize"

FLAGS = ("-O1", "-g1", "-fno-omit-frame-pointer")

LIMITED = "memory or threads_that_do_not_start"
"""Tests that limit the address space (pytest's -k): the runtimes of two sanitizers map terabytes for
themselves."""

KERNELS = ("tests/kernels",)
WITH_THREADS = tuple(
    f"{KERNELS[0]}/test_{what}.py"
    for what in ("adapters", "attention", "executor", "going_on", "linear", "pool", "rows")
)
"""Tests that run more threads than the test's own; an executor runs the sampler, too."""

ENCODERS = "tests/neuron/test_encoders.py"
CHAINS = (
    f"{ENCODERS}::test_a_pipeline_gives_the_same_bits",
    f"{ENCODERS}::test_a_text_has_the_same_bits_alone_and_in_any_company",
)
"""Tests in which threads take rows, and in the last whole sequences, through several Ops each by itself."""

TWINS = "tests/simulation/test_native_fleet.py"
"""Tests of the native schedulers of simulations: tables and packed bytes, in one thread."""

OTHER_ISAS = "test_other_isas"
"""Tests of other ISAs, which differ in the work of one thread, not in its synchronisation with others."""


@dataclass(frozen=True)
class Sanitizer:
    """One build.  flags: GCC's.  library: its runtime, loaded before all else.  options: by variable.

    faults: functions of faults.cpp and their arguments, which the sanitizer must report.  less: flags of
    AVX-512's tables besides.  tables: of kernels, as COREPIPE_TABLES has them; in the long form all that this
    CPU runs.
    """

    name: str
    flags: tuple[str, ...]
    less: str
    tables: str
    library: str
    options: dict[str, str]
    faults: dict[str, int]
    skipped: str
    tests: tuple[str, ...]

    @property
    def build(self) -> Path:
        return BUILDS / self.name

    @property
    def reports(self) -> list[Path]:
        """Returns a file for each process that had something to report."""
        return sorted(self.build.glob("report.*"))


SANITIZERS = (
    Sanitizer(
        "address",
        # Calls in place of inline checks halve the time that ASan adds to the build.  An access through null,
        # or beyond an object, is for ASan to see; UBSan's checks for them take a quarter of AVX2's table.
        # Beside ASan's, UBSan's runtime has to be a copy of the module's own, or it writes to stderr whatever
        # log_path says; pytest would keep that, and lose it with the process that UBSan ends.
        (
            "-fsanitize=address,undefined",
            "-fno-sanitize=null,object-size",
            "--param=asan-instrumentation-with-call-threshold=0",
            "-fno-sanitize-recover=undefined",
            "-static-libubsan",
            "-Wl,--exclude-libs,libubsan.a",
        ),
        # These two checks double the time that such a table takes to compile.
        "-fno-sanitize=alignment,pointer-overflow",
        # AVX-512 has Linears of its own; AVX2 has those that are written for any vectors, and all checks.
        "native,avx2",
        "libasan.so",
        # The interpreter frees little at its end: leaks are not looked for.
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
        {"beyond_the_end": 4, "undefined": 40},
        LIMITED,
        (*KERNELS, TWINS),
    ),
    Sanitizer(
        "thread",
        ("-fsanitize=thread",),
        "",
        "native",
        "libtsan.so",
        {"TSAN_OPTIONS": "second_deadlock_stack=1"},
        {"race": 1000},
        f"{LIMITED} or {OTHER_ISAS}",
        (*WITH_THREADS, *CHAINS),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of the builds; both where none is named")
    parser.add_argument("--whole", action="store_true", help="the long form of the tests")
    args = parser.parse_args()
    if unknown := set(args.names) - {one.name for one in SANITIZERS}:
        parser.error(f"no such build: {', '.join(sorted(unknown))}")
    wanted = [one for one in SANITIZERS if not args.names or one.name in args.names]
    verdicts = [is_clean(one, whole=args.whole) for one in wanted]
    if not all(verdicts):
        raise SystemExit(1)


def is_clean(sanitizer: Sanitizer, *, whole: bool) -> bool:
    """Builds, tries deliberate faults, runs the tests, and prints the results; returns True without any
    report."""
    begin = time.monotonic()
    module = build(sanitizer, "runnable" if whole else sanitizer.tables)
    silent = silent_about(sanitizer)
    remove_reports(sanitizer)
    built = time.monotonic()
    asked = environment(sanitizer, module) | ({} if whole else {FEW: "1"})
    done = subprocess.run(tests(sanitizer), env=asked, cwd=ROOT, check=False)
    tested = time.monotonic()
    for report in sanitizer.reports:
        print(report.read_text(errors="replace"))
    clean = done.returncode == 0 and not sanitizer.reports and not silent
    print(
        f"sanitize: {sanitizer.name}: {'clean' if clean else 'NOT CLEAN'}: {len(sanitizer.reports)} reports, "
        f"{f'silent about {silent}, ' if silent else ''}exit code {done.returncode}; "
        f"built in {built - begin:.0f} s, tested in {tested - built:.0f} s",
        flush=True,
    )
    return clean


def remove_reports(sanitizer: Sanitizer) -> None:
    for report in sanitizer.reports:
        report.unlink()


def build(sanitizer: Sanitizer, tables: str) -> Path:
    """Builds the module with the sanitizer in it."""
    tools = Path(sys.executable).parent
    configure = [
        tools / "cmake", "-G", "Ninja", "-S", ROOT, "-B", sanitizer.build,
        "-DCMAKE_BUILD_TYPE=Sanitize",
        f"-DCMAKE_CXX_FLAGS_SANITIZE={' '.join(FLAGS + sanitizer.flags)}",
        f"-DAVX512_OPTIONS={sanitizer.less}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        f"-DCOREPIPE_TABLES={tables}",
    ]  # fmt: skip
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    jobs = ["--parallel", os.environ.get("WORKERS", "2")]
    for command in (configure, [tools / "cmake", "--build", sanitizer.build, *jobs]):
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout[-8000:] + done.stderr[-8000:])
    (module,) = sanitizer.build.glob("_native*.so")
    return module


def silent_about(sanitizer: Sanitizer) -> list[str]:
    """Returns the deliberate faults that were not reported in a file, or whose process exited with 0."""
    library = sanitizer.build / "libfaults.so"
    compiler = os.environ.get("CXX", "c++")
    flags = (*FLAGS, *sanitizer.flags, "-fPIC", "-shared", "-pthread")
    subprocess.run([compiler, HERE / "faults.cpp", "-o", library, *flags], check=True)
    return [name for name, given in sanitizer.faults.items() if not is_told(sanitizer, library, name, given)]


def is_told(sanitizer: Sanitizer, library: Path, fault: str, given: int) -> bool:
    remove_reports(sanitizer)
    call = f"import ctypes; ctypes.CDLL({str(library)!r}).{fault}({given})"
    done = subprocess.run(
        [*plain_addresses(), sys.executable, "-c", call],
        env=environment(sanitizer, library),
        capture_output=True,
        check=False,
    )
    told = any(fault in report.read_text(errors="replace") for report in sanitizer.reports)
    return told and done.returncode != 0


def environment(sanitizer: Sanitizer, module: Path) -> dict[str, str]:
    """Returns the environment that loads the runtime.

    The interpreter is not built with the sanitizer, nor in C++: the runtime has to be loaded before all else,
    and looks for the functions that throw in libstdc++.
    """
    path = f"log_path={sanitizer.build / 'report'}"
    return {
        **os.environ,
        "COREPIPE_NATIVE": str(module),
        "PYTHONPATH": str(HERE),
        "LD_PRELOAD": f"{found(sanitizer.library)} {found('libstdc++.so.6')}",
        **{variable: f"{options}:{path}" for variable, options in sanitizer.options.items()},
        "OPENBLAS_NUM_THREADS": "1",
    }


def found(library: str) -> str:
    """Returns the path of a library of the compiler."""
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, f"-print-file-name={library}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def plain_addresses() -> list[str]:
    """Runs a command without random addresses, as TSan's shadow has a fixed place."""
    return ["setarch", "--addr-no-randomize"] if shutil.which("setarch") else []


def tests(sanitizer: Sanitizer) -> list[str]:
    """Returns the tests that run under a sanitizer."""
    workers = ["--numprocesses", os.environ.get("WORKERS", "2"), "--dist", "loadfile"]
    chosen = ["-k", f"not ({sanitizer.skipped})"] if sanitizer.skipped else []
    return [*plain_addresses(), sys.executable, "-m", "pytest", *workers, *sanitizer.tests, *chosen]


if __name__ == "__main__":
    main()
