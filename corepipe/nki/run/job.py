"""Messages between `bounded`, which asks for runs of kernels, and the process `child`, which runs them."""

from __future__ import annotations

import msgspec

from corepipe.nki.run.report import KernelReport


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel to run, and the limits of its process.

    inputs: shapes, or FILE.py:FUNCTION; None: the file's own `get_inputs`.  check: the FILE.py:FUNCTION whose
    outputs the kernel must have.  outputs: whether their elements are wanted after the report.  trace: the
    file to write the time line to.
    """

    file: str
    entry: str | None = None
    inputs: str | None = None
    target: str = "trn1"
    grid: tuple[int, ...] = ()
    values: bool = True
    check: str | None = None
    tolerance: float = 0.01
    outputs: bool = False
    trace: str | None = None
    seconds: float = 300.0
    memory: int = 8 << 30


class Failure(msgspec.Struct, frozen=True, tag=True):
    """The line that says why there is no report."""

    message: str


class Success(msgspec.Struct, frozen=True, tag=True):
    """A report; so many frames follow with the elements of its outputs, if they are wanted."""

    report: KernelReport
    parts: int = 0


Answer = Failure | Success
