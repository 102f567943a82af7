"""Sets up a virtual environment with corepipe in it: `make serve` and `make test` run this.

Three things go on side by side: the compiler builds the kernels, locked packages are installed by their
hashes, and the default model is downloaded.  The standard library is enough, as nothing else is there yet.
What each step prints is in build/setup; a step that fails has the end of that shown.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"
"""Files of versions with their hashes."""

BUILD = ROOT / "build"
LOGS = BUILD / "setup"
BACKEND = BUILD / "backend"
"""The build tools; outside the environment, which does not need them afterwards."""

BUILDERS = ("cmake", "ninja")
SHOWN_LINES = 30
LINE_SECONDS = 10.0
"""Between two lines of progress where stderr is no terminal."""

COMPILED = re.compile(r"\[(\d+)/(\d+)\] (?:Building|Linking)")


class SetUpError(Exception):
    """The message for the user."""


@dataclass
class Step:
    """One command.  weight: how long it takes, roughly, in seconds on two cores.

    after: names of steps that must have ended.  progress: the share of it that is done, by its log.
    """

    name: str
    command: Sequence[str | Path]
    weight: float
    after: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    progress: Callable[[str], tuple[int, int]] | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def start(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ends it with what it has started."""
        if self.process is not None and not self.ended:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()

    def done(self) -> tuple[int, int]:
        """The number of finished parts, and of all."""
        if self.ended:
            return 1, 1
        if self.process is None or self.progress is None:
            return 0, 1
        return self.progress(self.log.read_text(errors="replace"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("venv", type=Path, help="the environment's directory")
    parser.add_argument(
        "locks", nargs="+", help="files of requirements/ whose packages it gets, without .txt"
    )
    parser.add_argument("--with-model", action="store_true", help="download the default model, too")
    parser.add_argument(
        "--builders", action="store_true", help="cmake and ninja in the environment, for who builds by hand"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        set_up(given.venv.absolute(), given.locks, with_model=given.with_model, builders=given.builders)
    except SetUpError as error:
        sys.exit(f"corepipe: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def set_up(venv: Path, locks: Sequence[str], *, with_model: bool, builders: bool) -> None:
    """Raises SetUpError."""
    kernels = not os.environ.get("COREPIPE_WITHOUT_KERNELS")
    if kernels:
        check_compiler()
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    python = venv / "bin" / "python"
    if not python.exists():
        run_all([Step("environment", [sys.executable, "-m", "venv", venv], weight=3)])
    steps = [backend(python), package(python), packages(python, locks, builders=builders)]
    if with_model:
        steps.append(model(python))
    run_all(steps)
    print(f"corepipe: {venv.name} is set up ({time.monotonic() - began:.0f} s)", file=sys.stderr)


def check_compiler() -> None:
    if not shutil.which(os.environ.get("CXX", "c++")):
        raise SetUpError(
            "there is no C++ compiler, and the kernels are compiled: install one (Debian, Ubuntu: apt "
            "install g++; macOS: xcode-select --install), or COREPIPE_WITHOUT_KERNELS=1 for all but serving"
        )


def backend(python: Path) -> Step:
    """The packages that build corepipe, but for cmake and ninja where the machine has some that will do."""
    lock = LOCKS / "build.txt"
    if has_builders():
        entries = re.split(r"^(?=[\w.-]+==)", lock.read_text(), flags=re.M)
        lock = LOGS / "backend.txt"
        lock.write_text("".join(entry for entry in entries if not entry.startswith(BUILDERS)))
    return Step("build tools", installing(python, [lock], "--target", BACKEND), weight=4)


def package(python: Path) -> Step:
    """Compiles the kernels, and installs corepipe so that its modules are read from the checkout."""
    path = os.pathsep.join([str(BACKEND / "bin"), os.environ["PATH"]])
    command = [python, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-index", "--no-build-isolation", "--editable", ROOT]
    environment = {"PYTHONPATH": str(BACKEND), "PATH": path}
    return Step("kernels", command, 60, ["build tools"], environment, compiled)


def compiled(log: str) -> tuple[int, int]:
    found = COMPILED.findall(log)
    return (int(found[-1][0]), int(found[-1][1])) if found else (0, 1)


def packages(python: Path, locks: Sequence[str], *, builders: bool) -> Step:
    site = site_packages(python)
    files = [LOCKS / f"{name}.txt" for name in [*locks, *(["build"] if builders else [])]]
    wanted = sum(len(re.findall(r"^[\w.-]+==", file.read_text(), re.M)) for file in files)
    there = len(list(site.glob("*.dist-info")))

    def installed(_log: str) -> tuple[int, int]:
        return min(len(list(site.glob("*.dist-info"))) - there, wanted), wanted

    return Step("packages", installing(python, files), weight=20, progress=installed)


def model(python: Path) -> Step:
    """By the checkout's own code, which needs no kernels for it."""
    return Step("model", [python, "-m", "corepipe", "pull"], weight=10, after=["packages"])


def installing(python: Path, locks: Sequence[Path], *more: str | Path) -> list[str | Path]:
    """The command that installs what is locked: nothing is looked for, as all is named with its hash.

    Modules are compiled when they are imported, as most of them never are.
    """
    files = [part for lock in locks for part in ("--requirement", str(lock))]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", python, "--no-deps", "--require-hashes", *files, *more]
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    if more:
        command.append("--upgrade")  # else pip leaves a target that is there as it is
    return [*command, "--no-compile", "--no-deps", "--require-hashes", *files, *more]


def has_builders() -> bool:
    """True where this machine's own cmake and ninja will do."""
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which("ninja") is None:
        return False
    said = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) >= (3, 18)


def site_packages(python: Path) -> Path:
    script = 'import sysconfig; print(sysconfig.get_path("purelib"))'
    return Path(
        subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    )


# ---- running


def run_all(steps: Sequence[Step]) -> None:
    """Starts each step when those before it have ended, and shows how far they are.  Raises SetUpError."""
    with stopped_at_end(steps), Shown() as shown:
        while not all(step.ended for step in steps):
            for step in steps:
                if step.process is None and all(one.ended for one in steps if one.name in step.after):
                    step.start()
            check(steps)
            shown.show(steps)
            time.sleep(0.1)
        check(steps)


@contextmanager
def stopped_at_end(steps: Sequence[Step]) -> Iterator[None]:
    try:
        yield
    finally:
        for step in steps:
            step.stop()


def check(steps: Sequence[Step]) -> None:
    for step in steps:
        if step.process is not None and step.process.poll():
            lines = step.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
            said = "\n".join(f"    {line}" for line in lines)
            raise SetUpError(
                f"{step.name}: {step.command[0]} ended with {step.process.returncode}:\n{said}\n"
                f"all that it said is in {step.log.relative_to(ROOT)}"
            )


class Shown:
    """One line that says what is being done and how much of it is left."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show(self, steps: Sequence[Step]) -> None:
        now = time.monotonic()
        if not self._terminal and now - self._last < LINE_SECONDS:
            return
        self._last = now
        line = f"corepipe: setting up: {', '.join(filter(None, map(told, steps)))}{self._left(steps, now)}"
        end = "" if self._terminal else "\n"
        begin = "\r\033[K" if self._terminal else ""
        print(f"{begin}{line}", end=end, file=sys.stderr, flush=True)

    def _left(self, steps: Sequence[Step], now: float) -> str:
        weights = [(step.weight, *step.done()) for step in steps]
        share = sum(weight * done / of for weight, done, of in weights) / sum(
            weight for weight, _, _ in weights
        )
        if share < 0.1:
            return ""
        return f"; {share:.0%}, about {(now - self._began) * (1 - share) / share:.0f} s left"


def told(step: Step) -> str:
    """A step that is under way, in words; empty for another."""
    if step.process is None or step.ended:
        return ""
    done, of = step.done()
    return f"{step.name} {done}/{of}" if of > 1 else step.name


if __name__ == "__main__":
    main()
