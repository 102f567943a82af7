"""The work of `corepipe profile`: from the flags to a timeline, a summary of its steps, and advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from corepipe.cli.flags.options import Given
from corepipe.cli.output.common import check_writable, errors, print_json, progress_bar, results
from corepipe.cli.output.tables import Figures, between
from corepipe.cli.run.kernels import asked_kernels, kernels_in_words
from corepipe.cli.run.software import ASSUMED, PROFILE, GraphKind, software
from corepipe.engine.assembly.op_kernels import described_kernels
from corepipe.errors import UserError
from corepipe.models.registry import Architecture, architecture
from corepipe.neuron.chips import profiles
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import hypothetical
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS
from corepipe.neuron.timing import modes, perfetto
from corepipe.planning.profiling.bottlenecks import StepBottleneck, bottlenecks
from corepipe.planning.profiling.profile import Phase, ProfileRun, ProfileSetup, placed
from corepipe.planning.profiling.step_summary import PhaseMeasurement, Summary, measure
from corepipe.planning.profiling.step_trace import build


@dataclass(frozen=True, slots=True)
class _Result:
    """A profile to show; `reason` is the placement's, `output` the timeline's file."""

    run: ProfileRun
    reason: str
    measured: Sequence[PhaseMeasurement]
    bottlenecks: Sequence[StepBottleneck]
    output: Path | None


def run(given: Given) -> None:
    """Profiles with these flags and prints the result.  Raises UserError for what cannot be profiled."""
    if given["ladder"]:
        from corepipe.cli.run import ladder  # noqa: PLC0415 -- most profiles do without

        ladder.run(given)
        return
    given.refuse(("speculative_config",), "needs --ladder")
    check_writable("--output", given["output"])
    degrees = modes.RequestedDegrees(given["pipeline"], given["tensor"], given["data"], given["expert"])
    result = _result(_setup(given), given["mode"], degrees, given["output"])
    if given["json"]:
        print_json(_document(result))
    else:
        _print(results(), result, assumes=given["profile"] is None)


def _setup(given: Mapping[str, Any]) -> ProfileSetup:
    model = architecture(given["model"])
    stack = given["profile"] or ASSUMED[PROFILE][GraphKind.of(model.graph(FORMATS["bf16"]))]
    return ProfileSetup(
        architecture=model,
        format=TIMED_FORMATS[given["dtype"].value],
        instance=find_instance(given["instance"]),
        profile=profiles.profile(stack).with_kernels(asked_kernels(given, model)),
        batch=given["batch"],
        input_len=given["input_len"],
        decode_steps=given["output_steps"],
        max_model_len=_longest(model, given),
    )


def _longest(model: Architecture, given: Mapping[str, Any]) -> int:
    """Tokens of the longest sequence: of a prompt alone, where the model generates nothing."""
    causal = model.graph(FORMATS["bf16"]).causal
    input_len: int = given["input_len"]
    max_model_len: int | None = given["max_model_len"]
    steps = given["output_steps"] if causal else 0
    needed, most = input_len + steps, model.max_positions
    if needed > most:
        raise UserError(
            f"--input-len {input_len}: {model.name} takes {most} tokens; use --input-len {most - steps}",
            "input_len",
        )
    if max_model_len is not None and max_model_len < needed:
        raise UserError(
            f"--max-model-len {max_model_len}: the sequence has {needed} tokens; "
            f"use --max-model-len {needed}",
            "max_model_len",
        )
    return max_model_len or needed


def _result(
    wanted: ProfileSetup, mode: modes.Mode, degrees: modes.RequestedDegrees, output: Path | None
) -> _Result:
    with progress_bar(errors()) as report:
        report("predicting the steps", 0.0)
        setup, reason = placed(wanted, mode, degrees)
        run = ProfileRun(setup)
        measured: list[PhaseMeasurement] = []
        for phase in run.phases:
            report("predicting the steps", (1 + len(measured)) / (1 + len(run.phases)))
            measured.append(measure(run, phase))
        report("predicting the steps", 1.0)
        if output is not None:
            report("writing the timeline", 0.0)
            _write(run, output)
            report("writing the timeline", 1.0)
        report("trying changes that may help", 0.0)
        return _Result(run, reason, measured, bottlenecks(run, measured), output)


def _write(run: ProfileRun, path: Path) -> None:
    try:
        perfetto.write(build(run), path)
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror}", "output") from error


def _document(result: _Result) -> dict[str, object]:
    run, setup = result.run, result.run.setup
    return {
        "emulated": True,
        **hypothetical(setup.instance),
        "model": run.graph.name,
        "instance": setup.instance.name,
        "format": setup.format.name,
        "profile": setup.profile.name,
        **described_kernels(setup.profile, run.programs, setup.instance),
        "placement": asdict(setup.placement) | {"reason": result.reason},
        "batch": setup.batch,
        "input_len": setup.input_len,
        "max_model_len": setup.max_model_len,
        "steps": [
            {"name": s.name, "phase": s.phase, "seconds": s.seconds, "interval": run.between(s)}
            for s in run.steps
        ],
        "intervals": {phase: run.interval(phase).as_json() for phase in run.phases},
        "summary": [{"phase": part.phase, **asdict(part.summary)} for part in result.measured],
        "bottlenecks": [asdict(bottleneck) for bottleneck in result.bottlenecks],
        "trace": None if result.output is None else str(result.output),
    }


def _print(console: Console, result: _Result, *, assumes: bool) -> None:
    """assumes: whether the software around the model is the command's choice."""
    setup = result.run.setup
    console.print(
        f"{result.run.graph.name}, {setup.format.name}, on {setup.instance.name} "
        f"({setup.instance.standing}), profile {setup.profile.name}: {setup.batch} sequences of "
        f"{setup.input_len} tokens"
    )
    if setup.instance.hypothetical:
        console.print(f"hypothetical: {setup.instance.hypothetical}", style="yellow")
    console.print(result.reason, style="dim")
    around = software(setup.profile, result.run.graph if assumes else None)
    console.print(around, style="dim")
    for line in kernels_in_words(setup.profile, result.run.programs, setup.instance):
        console.print(line, style="dim", markup=False)
    table = Figures("a step", *(f">{part.phase}" for part in result.measured))
    for field in fields(Summary):
        table.add_row(field.name, *(_figure(getattr(part.summary, field.name)) for part in result.measured))
    table.add_row("interval", *(_sure(result.run, part.phase) for part in result.measured))
    console.print(table)
    for part in result.measured:
        basis = result.run.interval(part.phase).basis
        console.print(f"interval of {part.phase.value}: {basis}", style="dim", markup=False)
    for bottleneck in result.bottlenecks:
        console.print(f"- {bottleneck}")
    if result.output is not None:
        console.print(f"{result.output}: open it at https://ui.perfetto.dev")


def _sure(run: ProfileRun, phase: Phase) -> str:
    """Returns the interval of a measured step of the phase."""
    return between(run.interval(phase).around(run.seconds(phase)))


def _figure(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"
