"""Copies of the tree in which faults are planted, each with an environment whose `corepipe` is that copy.

The environment is a light one over the interpreter's own: its site-packages has two files.  Every process
that its interpreter starts imports the copy, whatever its directory and variables are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.planted import BUILD, ROOT

REPLACEMENT = ROOT / "tests" / "sanitizers" / "sitecustomize.py"


class Tree:
    """The copy of worker `number`, made anew from the files that git knows."""

    def __init__(self, number: int) -> None:
        self.folder = BUILD / f"w{number}"
        self.root = self.folder / "tree"
        self._environment = self.folder / "venv"
        self.python = self._environment / "bin" / "python"
        self.kernels: Path | None = None

    def make(self) -> None:
        """Copies a tree; unchanged files keep their time stamps, so that built kernels stay built."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        names = {name for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name)}
        for path in list(self.root.rglob("*")):
            if not path.is_dir() and str(path.relative_to(self.root)) not in names:
                path.unlink()
        for name in names:
            _copy(ROOT / name, self.root / name)
        self._make_environment()

    def use_kernels(self, module: Path | None) -> None:
        """From now on processes have this build of the kernels; None: the one that is installed."""
        self.kernels = module
        told = f"sys.meta_path.insert(0, Replacement({str(module or '')!r}, {str(self.root)!r}))\n"
        _write(self._site() / "sitecustomize.py", REPLACEMENT.read_text() + told)

    @contextmanager
    def planted(self, path: str, text: str) -> Iterator[None]:
        """A file has another text for as long as the context lasts."""
        target = self.root / path
        before = target.read_text(encoding="utf-8")
        _write(target, text)
        try:
            yield
        finally:
            _write(target, before)

    def _make_environment(self) -> None:
        if not self.python.exists():
            venv.create(self._environment, symlinks=True)
        own = sysconfig.get_path("purelib")
        (self._site() / "over.pth").write_text(f"import site; site.addsitedir({own!r})\n")
        for script in Path(sys.executable).parent.iterdir():  # cmake, ninja and what else tests call by path
            made = self.python.parent / script.name
            if not made.exists() and script.is_file():
                shutil.copy(script, made)
        self.use_kernels(None)

    def _site(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self._environment)}))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        if not target.is_symlink():
            target.symlink_to(source.readlink())
    elif not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def _write(path: Path, text: str) -> None:
    """Python tells a module's age by seconds and size: what it compiled goes."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
