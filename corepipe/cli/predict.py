"""Predict each row of a file: the same rows with `predicted`, in the row's unit, and `reason`.

`predicted` is empty where nothing can be said; `reason` says why, or what a figure must be read with.
"""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import REQUIRED, option, rows


def flags() -> list[Parameter]:
    """Returns the flags."""
    from corepipe.cli.flags.fields import of_engine  # noqa: PLC0415 -- heavy: a help does without

    return [
        rows("CSV file with a row for each figure to predict."),
        *of_engine("profile"),
        option("--output -o", Path, "CSV file to write the rows to, with predictions.", REQUIRED),
    ]
