"""Puts a sanitized build of the kernels in the place of the installed one, in a process and its children.

Python imports it at its start where this directory is on PYTHONPATH (docs.python.org/3/library/site.html).
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

NAME = "corepipe.kernels._native"


class Sanitized:
    """Finds the kernels at `COREPIPE_SANITIZED`, before any other finder."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != NAME:
            return None
        return importlib.util.spec_from_file_location(name, os.environ["COREPIPE_SANITIZED"])


if "COREPIPE_SANITIZED" in os.environ:
    sys.meta_path.insert(0, Sanitized)  # type: ignore[arg-type]
