"""A change that can be made in a source file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One application of an operator.  number: which of the file's, from 0.  lines: of the statement."""

    operator: str
    number: int
    line: int
    lines: range
