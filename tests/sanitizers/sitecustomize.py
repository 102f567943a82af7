"""Replaces the installed kernels or modules by another build of the kernels, or by another tree of modules.

Python imports it at its start where this directory is on PYTHONPATH (docs.python.org/3/library/site.html);
then the kernels are at `COREPIPE_NATIVE`, in a process and its children.  tests/planted has copies of it in
environments of their own, that name a tree, too.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

PACKAGE = "corepipe"
NATIVE = f"{PACKAGE}.kernels._native"


class Replacement:
    """Finds modules before any other finder.  native: the kernels' file.  tree: the package's directory.

    Modules that are not given are found by the later finders, for example an editable install's.
    """

    def __init__(self, native: str = "", tree: str = "") -> None:
        self._native = native
        self._tree = tree

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == NATIVE:
            return importlib.util.spec_from_file_location(name, self._native) if self._native else None
        if self._tree and name.partition(".")[0] == PACKAGE:
            return importlib.machinery.PathFinder.find_spec(name, path or [self._tree])
        return None


if "COREPIPE_NATIVE" in os.environ:
    sys.meta_path.insert(0, Replacement(os.environ["COREPIPE_NATIVE"]))  # type: ignore[arg-type]
