"""Score the cost model against measurements, cell by cell, with the plain roofline beside it."""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import argument, as_json, option


def flags() -> list[Parameter]:
    """Returns the flags."""
    from corepipe.cli.flags.fields import of_engine  # noqa: PLC0415 -- heavy: a help does without

    return [
        argument("rows", Path, "CSV file of measurements.", None, dir_okay=False),
        option("--scoreboard", bool, "Print the errors of this cost model beside those that others publish."),
        *of_engine("profile"),
        as_json(),
    ]
