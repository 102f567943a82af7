"""One run of a kernel: its arguments as tensors, its programs, and its outputs as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.core.recorder import Finding, Recorder, recording
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.dialects.current.tensor import NkiTensor
from corepipe.nki.dialects.current.types import MemoryRegion
from corepipe.nki.dialects.kernels import Kernel
from corepipe.nki.dialects.legacy.tiles import Tile
from corepipe.nki.rules.findings import examine
from corepipe.nki.rules.imports import find_imports
from corepipe.nki.run.loading import site_of

TENSORS = (NkiTensor, Tile)


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel with its arguments and its grid of programs.

    updates: arrays whose tensors the kernel writes are changed, as on the device.
    """

    kernel: Any
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    grid: tuple[int, ...] = ()
    updates: bool = False

    @property
    def function(self) -> Callable[..., Any]:
        found: Callable[..., Any] = self.kernel.function if isinstance(self.kernel, Kernel) else self.kernel
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """A kernel that was run: the record for its times, the findings of its values, and its outputs."""

    recorder: Recorder
    findings: Mapping[Any, Finding]
    outputs: Sequence[Array] = ()


def run(call: Call, generation: str, values: bool) -> Run:
    """Runs a kernel.

    A loop whose turns turn out to differ cannot be extrapolated: then the kernel is run again without values,
    and all turns of that loop are recorded.
    """
    recorder = Recorder(generation, is_legacy(call), values, grid=call.grid)
    with recording(recorder):
        outputs = _programs(recorder, call)
        examine(recorder, outputs)
        find_imports(recorder, call.function.__code__.co_filename)
        arrays = [view.array().copy() for view in outputs] if values else []
    findings = recorder.findings
    while recorder.differing:
        exact = recorder.exact | recorder.differing
        recorder = Recorder(generation, recorder.legacy, values=False, grid=call.grid, exact=exact)
        with recording(recorder):
            _programs(recorder, call)
    return Run(recorder, findings, arrays)


def _programs(recorder: Recorder, call: Call) -> list[View]:
    """Runs all programs of the grid, one after the other, and returns the outputs."""
    arguments = [_given(recorder, a) for a in call.arguments]
    keywords = {name: _given(recorder, a, name) for name, a in call.keywords.items()}
    result = None
    for program in np.ndindex(call.grid):
        recorder.program = program
        result = _run(call.function, arguments, keywords)
        recorder.flush()
    if call.updates and recorder.values:
        given, tensors = (*call.arguments, *call.keywords.values()), (*arguments, *keywords.values())
        for array, tensor in zip(given, tensors, strict=True):
            if isinstance(array, np.ndarray) and array.flags.writeable:
                array[...] = tensor.part.array()
    return _outputs(recorder, result)


def is_legacy(call: Call) -> bool:
    """Tells whether a kernel is written in the legacy dialect: its decorator says it, or what it imports."""
    if isinstance(call.kernel, Kernel):
        return call.kernel.legacy
    code = call.function.__code__
    modules = [str(getattr(v, "__name__", "")) for v in call.function.__globals__.values()]
    names = (*modules, *code.co_names)
    return any(name.startswith("neuronxcc") for name in names) and not any(
        name.startswith("nki.") for name in names
    )


def _given(recorder: Recorder, value: Any, name: str = "") -> Any:
    """Returns an argument as the kernel sees it: arrays are tensors in HBM."""
    if isinstance(value, tuple | list):
        return type(value)(_given(recorder, v, name) for v in value)
    if hasattr(value, "__array__") and not isinstance(value, np.generic | type):  # torch's and jax's too
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    view = whole(recorder.give(name, value))
    return Tile(view) if recorder.legacy else NkiTensor(view, MemoryRegion.hbm, name)


def _run(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Calls the kernel.  Raises KernelError, with the line, for what it raises."""
    try:
        return function(*arguments, **keywords)
    except KernelError as error:
        if error.site is not None:
            raise
        raise KernelError(str(error), site_of(error.__traceback__)) from error
    except Exception as error:
        text = str(error) or "no message"
        raise KernelError(f"{type(error).__name__}: {text}", site_of(error.__traceback__)) from error


def _outputs(recorder: Recorder, result: Any) -> list[View]:
    """Returns the tensors that the kernel returned, or the parameters that it wrote."""
    if result is not None:
        tensors = result if isinstance(result, tuple | list) else [result]
        return [t.part for t in tensors if isinstance(t, TENSORS)]
    instructions = [e for e in recorder.stream if isinstance(e, Instruction)]
    written = {id(r.buffer) for e in instructions for r in e.writes if r.buffer.given}
    return [whole(b) for b in recorder.buffers if id(b) in written]
