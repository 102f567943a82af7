"""A run of a kernel from a file, as a job says: its inputs, its run, its check and its report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from corepipe.errors import UserError
from corepipe.nki.run import report as reports
from corepipe.nki.run.advice import KernelRun, advice
from corepipe.nki.run.comparing import as_outputs, difference
from corepipe.nki.run.inputs import (
    DEFAULT_FUNCTION,
    EXAMPLE,
    KernelInputs,
    called,
    is_function,
    of_function,
    of_shapes,
    spelled,
    taken_by,
)
from corepipe.nki.run.job import Job
from corepipe.nki.run.loading import entry_of, function_of, module_of, parameters_of
from corepipe.nki.run.report import CheckReport, KernelReport
from corepipe.nki.run.simulate import GENERATIONS, Result, simulate
from corepipe.nki.timing.constants import shipped


@dataclass(frozen=True, slots=True)
class Execution:
    """The report of a job, and the result that it is made of."""

    report: KernelReport
    result: Result


def execute(job: Job) -> Execution:
    """Runs a job in this process.  Raises UserError, and what the user's code raises."""
    path = Path(job.file)
    module = module_of(path)
    entry = entry_of(module, path, job.entry)
    kernel = getattr(module, entry)
    parameters = parameters_of(kernel)
    inputs = _inputs(job, module, entry, parameters)
    taken_by(parameters, inputs, f"{path}: {entry}")
    given, digest = inputs.named(parameters), inputs.digest()
    reference = function_of(job.check, "--check") if job.check else None
    result = simulate(
        kernel, *inputs.arguments, target=job.target, values=job.values, grid=job.grid, **inputs.keywords
    )
    check = _checked(job, reference(*inputs.arguments, **inputs.keywords), result) if reference else None
    frame = 1e-6 * shipped()[GENERATIONS[job.target]].constants.frame_us
    report = KernelReport(
        file=job.file,
        entry=entry,
        target=job.target,
        inputs=reports.arrays(given),
        inputs_digest=digest,
        outputs=reports.arrays({f"output {i}": one for i, one in enumerate(result.outputs)}),
        **reports.measured(result, frame),
        advice=advice(KernelRun(result.times, *_sizes(given.values()), frame)),
        check=check,
    )
    return Execution(report, result)


def _inputs(job: Job, module: ModuleType, entry: str, parameters: Sequence[Parameter]) -> KernelInputs:
    """Returns the inputs that are asked for, or those of the file's own function."""
    if job.inputs is not None:
        return of_function(job.inputs) if is_function(job.inputs) else of_shapes(job.inputs)
    own = getattr(module, DEFAULT_FUNCTION, None)
    if callable(own):
        return called(own, f"{job.file}: {DEFAULT_FUNCTION}")
    if parameters:
        raise UserError(
            f"{job.file}: {entry} takes {spelled(parameters)}; give these with --inputs, as shapes like "
            f"{EXAMPLE} or as FILE.py:FUNCTION, or define {DEFAULT_FUNCTION}() in the file",
            "inputs",
        )
    return KernelInputs()


def _sizes(values: Iterable[Any]) -> tuple[int, bool]:
    """Returns the bytes of the arrays among these values, and whether one is fp32."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays), any(array.dtype == np.float32 for array in arrays)


def _checked(job: Job, expected: Any, result: Result) -> CheckReport:
    """Compares the outputs with what the reference returned for the same inputs."""
    assert job.check is not None
    found = difference(result.outputs, as_outputs(expected))
    return CheckReport(job.check, found, job.tolerance, found.within(job.tolerance))
