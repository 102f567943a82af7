"""Classes of tables of kernels with equal bits, on x86-64 and on ARM, by the C++ program in `bits`.

ARM's tables are cross-compiled and run by QEMU's user emulation, if both are installed: `make arm`.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILDS = HERE.parents[1] / "build" / "bits"
COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
PACKAGES = "g++-aarch64-linux-gnu and qemu-user-static"
"""Names of the Debian packages."""

ARM = ("neon-i8mm", "neon-dotprod", "portable")
TARGET = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    f"-DCMAKE_CXX_COMPILER={COMPILER}",
    "-DCMAKE_EXE_LINKER_FLAGS=-static",
)

Digests = dict[str, str]
"""Digests by the name of a piece."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64",
        reason="compares ARM with an x86-64 at hand",
    ),
]


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def tool(*names: str) -> str:
    """Returns the first of these tools that is installed, beside the interpreter or on the path; skips the
    test if none is."""
    for name in names:
        if found := shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name):
            return found
    pytest.skip(f"{names[0]} is not installed: ARM's kernels need cmake, {PACKAGES}")


def built(name: str, *options: str) -> Path:
    cmake, build = tool("cmake"), BUILDS / name
    run(cmake, "-S", HERE / "bits", "-B", build, *options)
    run(cmake, "--build", build, "--parallel", "2")
    return build / "bits"


def digests(*command: str | Path) -> Digests:
    return dict(line.split() for line in run(*command).splitlines())


@pytest.fixture(scope="module")
def x86() -> dict[str, Digests]:
    """Returns the digests by the name of each table that this CPU has."""
    program = built("x86_64")
    return {table: digests(program, table) for table in run(program).split()}


@pytest.fixture(scope="module")
def arm() -> dict[str, Digests]:
    emulator = tool(*EMULATORS)
    tool(COMPILER)
    program = built("aarch64", *TARGET)
    assert tuple(run(emulator, "-cpu", "max", program).split()) == ARM
    return {table: digests(emulator, "-cpu", "max", program, table) for table in ARM}


def differing(one: Digests, other: Digests) -> set[str]:
    assert one.keys() == other.keys()
    return {piece for piece, digest in one.items() if digest != other[piece]}


def equal_pieces(tables: Iterable[Digests]) -> set[str]:
    """Returns the pieces that have the same digest in all tables."""
    first, *others = tables
    return set(first) - set().union(*(differing(first, other) for other in others))


def test_arm_has_the_bits_of_avx2(arm: dict[str, Digests], x86: dict[str, Digests]) -> None:
    if "avx2" not in x86:
        pytest.skip("this CPU has no AVX2")
    for table in ARM:
        assert differing(arm[table], x86["avx2"]) == set(), table


def test_sums_of_integers_are_the_same_everywhere(arm: dict[str, Digests], x86: dict[str, Digests]) -> None:
    equal = equal_pieces([*x86.values(), *arm.values()])
    assert "linear.int8.sums" in equal
    assert {
        piece for piece in arm["portable"] if piece.startswith("linear.int4") and piece.count(".") == 1
    } <= equal


@pytest.mark.parametrize(
    ("cpu", "tables"),
    [("cortex-a72", ("portable",)), ("neoverse-n1", ("neon-dotprod", "portable")), ("max", ARM)],
)
def test_a_cpu_gets_the_tables_whose_instructions_it_has(cpu: str, tables: tuple[str, ...]) -> None:
    emulator = tool(*EMULATORS)
    tool(COMPILER)
    assert tuple(run(emulator, "-cpu", cpu, built("aarch64", *TARGET)).split()) == tables
