"""`corepipe profile`: where the time of a prefill and of decode steps goes, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from corepipe.cli import options
from corepipe.cli.common import errors, print_json, progress_bar
from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron import modes, perfetto, profiles
from corepipe.neuron.catalog import instance as find_instance
from corepipe.neuron.graph import FORMATS
from corepipe.planning.bottlenecks import Bottleneck, bottlenecks
from corepipe.planning.profile import Run, Setup, placed
from corepipe.planning.step_summary import Measured, Summary, measure
from corepipe.planning.step_trace import build

DEFAULT_PROFILE = "async"

Model = Annotated[
    str, typer.Argument(help="A directory, a config.json, a .gguf file, or a name such as llama-3.1-8b.")
]
Batch = Annotated[int, typer.Option("--batch", help="Sequences in a decode step.", min=1, max=1024)]
InputLen = Annotated[int, typer.Option("--input-len", help="Prompt tokens of each sequence.", min=1)]
Steps = Annotated[int, typer.Option("--output-steps", help="Decode steps after the prefill.", min=0, max=64)]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the timeline here, for ui.perfetto.dev.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True, slots=True)
class _Result:
    """A profile to show; `reason` is the placement's, `output` the timeline's file."""

    run: Run
    reason: str
    measured: Sequence[Measured]
    bottlenecks: Sequence[Bottleneck]
    output: Path | None


def profile(
    model: Model,
    instance: options.Instance = "inf2.xlarge",
    mode: options.ModeOption = options.Mode.AUTO,
    pipeline: options.Pipeline = None,
    tensor: options.Tensor = None,
    data: options.Data = None,
    dtype: options.Format = options.Dtype.BF16,
    profile: options.Profile = None,
    max_model_len: options.MaxModelLen = None,
    batch: Batch = 4,
    input_len: InputLen = 512,
    output_steps: Steps = 3,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Show where the time of a prefill and of decode steps goes on the emulated device, and what would help.

    Reads no weights.  The summary is in neuron-profile's terms; the timeline is a Perfetto trace.
    """
    wanted = Setup(
        architecture=architecture(model),
        format=FORMATS[dtype.value],
        instance=find_instance(instance),
        profile=profiles.profile(profile or DEFAULT_PROFILE),
        batch=batch,
        input_len=input_len,
        decode_steps=output_steps,
        max_model_len=_longest(max_model_len, input_len, output_steps),
    )
    result = _result(wanted, mode, modes.Degrees(pipeline, tensor, data), output)
    if as_json:
        print_json(_document(result))
    else:
        _print(Console(highlight=False, soft_wrap=True), result)


def _longest(max_model_len: int | None, input_len: int, output_steps: int) -> int:
    needed = input_len + output_steps
    if max_model_len is not None and max_model_len < needed:
        raise UserError(
            f"--max-model-len {max_model_len}: --input-len and --output-steps make {needed} tokens; "
            f"use --max-model-len {needed}",
            "max_model_len",
        )
    return max_model_len or needed


def _result(wanted: Setup, mode: options.Mode, degrees: modes.Degrees, output: Path | None) -> _Result:
    with progress_bar(errors()) as report:
        report("predicting the steps", 0.0)
        setup, reason = placed(wanted, mode.value, degrees)
        run = Run(setup)
        measured = [measure(run, phase) for phase in run.phases]
        report("predicting the steps", 1.0)
        if output is not None:
            report("writing the timeline", 0.0)
            _write(run, output)
            report("writing the timeline", 1.0)
        report("trying what would help", 0.0)
        return _Result(run, reason, measured, bottlenecks(run, measured), output)


def _write(run: Run, path: Path) -> None:
    try:
        perfetto.write(build(run), path)
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror}", "output") from error


def _document(result: _Result) -> dict[str, object]:
    run, setup = result.run, result.run.setup
    return {
        "emulated": True,
        "model": run.graph.name,
        "instance": setup.instance.name,
        "format": setup.format.name,
        "profile": setup.profile.name,
        "placement": asdict(setup.placement) | {"reason": result.reason},
        "batch": setup.batch,
        "input_len": setup.input_len,
        "max_model_len": setup.max_model_len,
        "steps": [{"name": s.name, "phase": s.phase, "seconds": s.seconds} for s in run.steps],
        "summary": [{"phase": part.phase, **asdict(part.summary)} for part in result.measured],
        "bottlenecks": [asdict(bottleneck) for bottleneck in result.bottlenecks],
        "trace": None if result.output is None else str(result.output),
    }


def _print(console: Console, result: _Result) -> None:
    setup = result.run.setup
    console.print(
        f"{result.run.graph.name}, {setup.format.name}, on {setup.instance.name} (emulated), "
        f"profile {setup.profile.name}: {setup.batch} sequences of {setup.input_len} tokens"
    )
    console.print(f"[dim]{result.reason}[/dim]")
    table = Table("a step", box=None)
    for part in result.measured:
        table.add_column(part.phase.value, justify="right")
    for field in fields(Summary):
        table.add_row(field.name, *(_figure(getattr(part.summary, field.name)) for part in result.measured))
    console.print(table)
    for bottleneck in result.bottlenecks:
        console.print(f"- {bottleneck}")
    if result.output is not None:
        console.print(f"{result.output}: open it at https://ui.perfetto.dev")


def _figure(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"
