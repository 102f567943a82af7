"""The kernels of a deployment: each is compared with its Op, then simulated at the sizes that steps need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Any

import numpy as np

from corepipe.neuron.chips.engines import Cost, OpCost
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.kernel_cost import KernelCost, KernelCurve, KernelSteps, KernelTime, PhaseCurve
from corepipe.nki import simulate
from corepipe.nki.core.instructions import Engine
from corepipe.nki.ops.comparison import Compared, compared
from corepipe.nki.ops.contract import Array, Contract, Sizes, Source, refused
from corepipe.nki.ops.given import GivenKernel, load
from corepipe.nki.run.loading import described, parameters_of
from corepipe.nki.run.simulate import GENERATIONS, Result
from corepipe.nki.timing.constants import shipped

TARGETS = {"v2": "trn1", "v3": "trn2", "v4": "trn3"}
"""The simulator's targets for the generations of cores; the first has no NKI."""

SEED = 0
"""Seed of the inputs with which outputs are compared."""


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The largest steps of a deployment: rows, sequences, and tokens of a sequence."""

    rows: int
    sequences: int
    longest: int


@dataclass(slots=True)
class KernelRuns:
    """One kernel for one size of an Op on one generation of cores: how it differs, and its times."""

    kernel: GivenKernel
    contract: Contract
    target: str
    worst: Compared
    curve: KernelCurve
    phase: PhaseCurve = field(init=False)

    def __post_init__(self) -> None:
        self.phase = PhaseCurve(self.curve, self.contract.steps, self.contract.each)

    def describe(self) -> dict[str, object]:
        """Returns what /v1/placement and `--json` say of the kernel."""
        return {
            "kernel": self.kernel.text,
            "target": self.target,
            "op": self.contract.sizes,
            "largest_difference": self.worst.share,
            "bound": self.contract.bound,
            "microseconds": [
                {"sizes": list(sizes), "microseconds": time.seconds * 1e6}
                for sizes, time in sorted(self.curve.known.items())
            ],
            "summary": str(self),
        }

    def __str__(self) -> str:
        of = ", ".join(f"{name} {value}" for name, value in self.contract.sizes.items())
        times = sorted(time.seconds * 1e6 for time in self.curve.known.values())
        spread = (
            f"{times[0]:,.4g} to {times[-1]:,.4g} us" if times[1:] else "".join(f"{t:,.4g} us" for t in times)
        )
        return (
            f"{self.kernel.text} on {self.target} ({of}): within {self.worst.share:.2g} of the model's "
            f"values (bound {self.contract.bound:.2g}); {spread or 'no time yet'} at {len(times)} sizes"
        )


class ModelKernels:
    """The kernels that stand for Ops of a graph, as `RuntimeProfile.kernels` takes them.

    A kernel is simulated at the sizes that are asked for.  Raises UserError for an Op that the graph has
    not, and for a kernel that is not there.
    """

    def __init__(self, texts: Sequence[str], graph: Graph) -> None:
        self.texts = texts
        self._kernels = load(texts, graph)
        self._runs: dict[tuple[str, Contract, str], KernelRuns] = {}

    def cost(self, op: Any, own: Cost, fmt: Format, core: tuple[str, int]) -> Cost:
        """Returns the cost of an Op on cores of a generation, of so many physical cores; `own` where no
        kernel computes it.  Raises UserError for a kernel that computes something else, or cannot run."""
        runs = [self._of(kernel, op, fmt, core) for kernel in self._of_kind(op)]
        if not runs:
            return own
        prompts = next((one for one in runs if one.contract.prompts), None)
        decodes = next((one for one in runs if one.contract.decodes), None)
        return KernelCost(
            op.out.rows.number,
            None if prompts is None else prompts.phase,
            None if decodes is None else decodes.phase,
            own,
            least=runs[0].contract.least,
            split=own.split if isinstance(own, OpCost) else 1,
        )

    def settle(self, program: Program, core: tuple[str, int], limits: KernelLimits) -> None:
        """Simulates the kernels of a Program at all sizes that its steps may have; none runs after that."""
        for op in program.ops:
            for kernel in self._of_kind(op):
                runs = self._of(kernel, op, program.format, core)
                runs.curve.settle(*_most(runs.contract, limits))

    def describe(
        self, ops: Iterable[object], fmt: Format, core: tuple[str, int]
    ) -> Sequence[Mapping[str, object]]:
        """Returns for each kernel, and each size of these Ops, how it compares and its simulated times."""
        found: dict[int, KernelRuns] = {}
        for op in ops:
            for kernel in self._of_kind(op):
                runs = self._of(kernel, op, fmt, core)
                found[id(runs)] = runs
        return [runs.describe() for runs in found.values()]

    def _of_kind(self, op: object) -> list[GivenKernel]:
        return [kernel for kernel in self._kernels if type(op) is kernel.contract.kinds]

    def _of(self, kernel: GivenKernel, op: Any, fmt: Format, core: tuple[str, int]) -> KernelRuns:
        generation, lnc = core
        if generation not in TARGETS:
            raise refused(kernel.text, "NKI has no NeuronCores of inf1", "instance")
        contract, target = kernel.contract.of(op, fmt, lnc), TARGETS[generation]
        key = kernel.text, contract, target
        if key not in self._runs:
            self._runs[key] = self._made(kernel, contract, target)
        return self._runs[key]

    def _made(self, kernel: GivenKernel, contract: Contract, target: str) -> KernelRuns:
        run = _Runner(kernel, contract, target)
        worst = [run.compare(sizes) for sizes in contract.compared]
        curve = KernelCurve(run.time, *contract.axes)
        return KernelRuns(kernel, contract, target, max(worst, key=lambda one: one.share), curve)


class _Runner:
    """Runs one kernel with the arguments of its contract."""

    def __init__(self, kernel: GivenKernel, contract: Contract, target: str) -> None:
        self._kernel, self._contract, self._target = kernel, contract, target
        self._keywords = _keywords(kernel, contract)
        names = {parameter.name for parameter in parameters_of(kernel.function)}
        self._taken = [name for name in contract.optional if name in names]

    def compare(self, sizes: Sizes) -> Compared:
        """Returns the largest difference from the Op's values.  Raises UserError where it is too large."""
        contract, arrays = self._contract, self._contract.arrays(sizes, Source(SEED))
        result = self._run(arrays, values=True)
        first = len(arrays) - len(contract.optional)
        own = [  # what the kernel is not given is 0
            np.zeros_like(array)
            if at >= first and contract.optional[at - first] not in self._taken
            else array
            for at, array in enumerate(arrays)
        ]
        try:
            worst = compared(result.outputs, contract.twin(own)[: contract.results(self._taken)])
        except ValueError as error:
            raise refused(self._kernel.text, f"{error} for {_shapes(arrays)}") from None
        if not worst.passes(contract.bound):
            raise refused(
                self._kernel.text,
                f"computes something else than the model's {contract.kinds.__name__}: {worst}, for "
                f"{_shapes(arrays)}; the bound is {contract.bound:.2g} of the largest, {worst.largest:.4g}",
            )
        return worst

    def time(self, x: int, y: int) -> KernelTime:
        """Returns the time of a run at these sizes."""
        result = self._run(self._contract.arrays((x, y), Source()), values=False)
        seconds = kernel_seconds(result, self._target)
        busy = {engine: min(seconds, time.busy) for engine, time in result.engines.items()}
        return KernelTime(
            seconds,
            busy.get(Engine.TENSOR, 0.0),
            busy.get(Engine.VECTOR, 0.0),
            busy.get(Engine.SCALAR, 0.0),
            busy.get(Engine.DMA, 0.0),
            float(result.traffic.read),
            float(result.traffic.written),
        )

    def _run(self, arrays: Sequence[Array], *, values: bool) -> Result:
        kernel, optional = self._kernel, self._contract.optional
        first = len(arrays) - len(optional)
        more = {
            name: array for name, array in zip(optional, arrays[first:], strict=True) if name in self._taken
        }
        given = {**self._keywords, **more}
        try:
            return simulate(kernel.function, *arrays[:first], target=self._target, values=values, **given)
        except Exception as error:  # the user's code may raise anything
            why = described(error, Path(kernel.file))
            raise refused(kernel.text, f"{why}, for {_shapes(arrays)} on {self._target}") from error


def kernel_seconds(result: Result, target: str) -> float:
    """Returns the time of a kernel without the frame of an execution, which `nki.benchmark` counts.

    As part of a model's program a kernel has none."""
    return result.times.seconds - shipped()[GENERATIONS[target]].constants.frame_us * 1e-6


def _keywords(kernel: GivenKernel, contract: Contract) -> dict[str, Any]:
    """Returns the keywords that the kernel takes.  Raises UserError where it lacks one that is needed."""
    parameters = parameters_of(kernel.function)
    names = {parameter.name for parameter in parameters}
    takes_all = not parameters or any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    wanted = contract.keywords()
    for name, keyword in wanted.items():
        if name not in names and not takes_all and not keyword.is_default:
            raise refused(
                kernel.text, f"has no parameter {name}, which is {keyword.value} here, not {keyword.default}"
            )
    return {name: keyword.value for name, keyword in wanted.items() if name in names}


def _most(contract: Contract, limits: KernelLimits) -> tuple[float, float]:
    """Returns the largest size along each axis in steps of these limits."""
    match contract.steps:
        case KernelSteps.ROWS:
            return contract.each * limits.rows, 0
        case KernelSteps.PROMPTS:
            return min(limits.rows, limits.longest), limits.longest
        case KernelSteps.TOKENS:
            return limits.sequences, limits.longest


def _shapes(arrays: Sequence[Array]) -> str:
    return ", ".join(f"[{', '.join(map(str, array.shape))}]" for array in arrays)
