"""Packages: a wheel has kernels or is refused, and the source distribution is complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NOT_SOURCES = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "__pycache__", "*.so", ".*_cache")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, as it would be built in a fresh clone."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("clone") / "s", symlinks=True, ignore=NOT_SOURCES)


def built(what: str, sources: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the build backend, as pip does."""
    code = f"from scikit_build_core.build import build_{what} as b; b({str(folder)!r})"
    env = {name: value for name, value in os.environ.items() if name != "COREPIPE_WITHOUT_KERNELS"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=sources,
        env=env | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def wheel(folder: Path) -> list[str]:
    (path,) = folder.glob("corepipe-*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_without_a_compiler_no_wheel_is_built(sources: Path, tmp_path: Path) -> None:
    done = built("wheel", sources, tmp_path, CXX="/bin/false")
    assert done.returncode != 0
    assert "CMake" in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_kernels_is_for_those_who_ask(sources: Path, tmp_path: Path) -> None:
    done = built("wheel", sources, tmp_path, CXX="/bin/false", COREPIPE_WITHOUT_KERNELS="1")
    assert done.returncode == 0, done.stderr
    names = wheel(tmp_path)
    assert "corepipe/cli/serve.py" in names
    assert [name for name in names if "/_native." in name] == ["corepipe/kernels/_native.pyi"]


@pytest.mark.slow  # a minute and more of compiling
def test_a_wheel_has_the_kernels(sources: Path, tmp_path: Path) -> None:
    done = built("wheel", sources, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [name for name in wheel(tmp_path) if re.fullmatch(r"corepipe/kernels/_native\..*so", name)]


def test_the_source_distribution_carries_what_its_dockerfile_copies(sources: Path, tmp_path: Path) -> None:
    done = built("sdist", sources, tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("corepipe-*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    copied = [source for sources in copies for source in sources.split()]
    assert "requirements" in copied
    assert [source for source in copied if not any(f"{n}/".startswith(f"{source}/") for n in names)] == []
    assert "Dockerfile" in names
    used = set(re.findall(r"-r /src/(\S+)", (ROOT / "Dockerfile").read_text()))
    assert used
    assert used <= set(names)
