"""Score the cost model against measurements, cell by cell, with the plain roofline beside it."""

from __future__ import annotations

from inspect import Parameter

from corepipe.cli.flags.options import as_json, rows


def flags() -> list[Parameter]:
    """Returns the flags."""
    from corepipe.cli.flags.fields import of_engine  # noqa: PLC0415 -- heavy: a help does without

    return [rows("CSV file of measurements."), *of_engine("profile"), as_json()]
