"""`corepipe profile`: where the time of a prefill and of decode steps goes, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corepipe.cli.flags import options

Model = Annotated[
    str, typer.Argument(help="A directory, a config.json, a .gguf file, or a name such as llama-3.1-8b.")
]
Batch = Annotated[int, typer.Option("--batch", help="Sequences in a decode step.", min=1, max=1024)]
InputLen = Annotated[int, typer.Option("--input-len", help="Prompt tokens of each sequence.", min=1)]
Steps = Annotated[int, typer.Option("--output-steps", help="Decode steps after the prefill.", min=0, max=64)]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the timeline here, for ui.perfetto.dev.")
]
LadderOption = Annotated[
    bool,
    typer.Option("--ladder", help="What batching, formats, cores and the like buy, one after the other."),
]
Guesses = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        help="With --ladder: guesses, of which is assumed how often they are right; JSON, as simulate's.",
        metavar="JSON",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def profile(
    ctx: typer.Context,
    model: Model,
    instance: options.Instance = "inf2.xlarge",
    mode: options.ModeOption = options.Mode.AUTO,
    pipeline: options.Pipeline = None,
    tensor: options.Tensor = None,
    data: options.Data = None,
    expert: options.Expert = None,
    dtype: options.TimedFormat = options.TimedDtype.BF16,
    profile: options.Profile = None,
    max_model_len: options.MaxModelLen = None,
    batch: Batch = 4,
    input_len: InputLen = 512,
    output_steps: Steps = 3,
    output: Output = None,
    ladder: LadderOption = False,
    speculative_config: Guesses = None,
    as_json: AsJson = False,
) -> None:
    """Show where the time of a prefill and of decode steps goes on the emulated device, and what would help.

    Reads no weights.  The summary is in neuron-profile's terms; the timeline is a Perfetto trace.
    """
    if ladder:
        from corepipe.cli.run import ladder as command  # noqa: PLC0415 -- heavy: the others do without
    else:
        from corepipe.cli.run import profile as command  # type: ignore[no-redef]  # noqa: PLC0415 -- as above

    command.run(ctx.params)
