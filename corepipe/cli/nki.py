"""Run a kernel in AWS's kernel language, NKI, without a device: its values, and the time that it would take.

Several kernels are compared side by side.  This runs the Python of FILES, and of the files that --inputs and
--check name, with your rights: only give files that you trust.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import argument, as_json, option


class Target(StrEnum):
    """The chips whose cores run kernels."""

    TRN1 = "trn1"
    INF2 = "inf2"
    TRN2 = "trn2"
    TRN3 = "trn3"


def flags() -> list[Parameter]:
    """Returns the flags."""
    conditions, limits = partial(option, panel="Conditions"), partial(option, panel="Limits")
    return [
        argument("files", list[str], "Python file with a kernel, or FILE:ENTRY; several are compared."),
        option("--entry", str, "Name of the kernel; default: the only one in the file."),
        option(
            "--inputs",
            str,
            "Inputs: shapes with their types and numbers, such as 128x512:float32,128x512:bfloat16,eps=1e-5, "
            "which are filled with seeded random values; or FILE.py:FUNCTION, which returns a tuple of "
            "arrays, or a dict of them by the names of parameters. Default: get_inputs() of the file.",
        ),
        option("--target", Target, "Chip whose core runs the kernel.", Target.TRN1),
        option("--grid", str, "Number of programs along each axis of the launch grid, such as 2 or 2x4."),
        option("--no-values", bool, "Predict the time alone: no values are computed, which is faster."),
        option("--lines", int, "Lines of the source to print, the slowest ones.", 10, min=0),
        option("--trace", Path, "File to write the timeline to, for ui.perfetto.dev."),
        as_json(),
        conditions(
            "--check",
            str,
            "FILE.py:FUNCTION that returns what the kernel must return for the same inputs; exit code 3 if "
            "the outputs differ by more than --tolerance.",
        ),
        conditions(
            "--tolerance",
            float,
            "Largest error of --check, as a share of the largest absolute value of the reference's output.",
            0.01,
            min=0,
        ),
        conditions("--max-us", float, "Exit with code 3 if a kernel takes more microseconds.", min=0),
        limits("--timeout-s", float, "Most seconds that a kernel may run on this machine.", 300.0, min=0.1),
        limits("--memory-gib", float, "Most memory of this machine that a kernel may take.", 8.0, min=0.1),
    ]
