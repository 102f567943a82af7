"""`corepipe profile`: where the time of a prefill and of decode steps goes, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from corepipe.cli.flags.options import Model

Batch = Annotated[int, typer.Option("--batch", help="Sequences in a decode step.", min=1, max=1024)]
InputLen = Annotated[int, typer.Option("--input-len", help="Prompt tokens of each sequence.", min=1)]
Steps = Annotated[int, typer.Option("--output-steps", help="Decode steps after the prefill.", min=0, max=64)]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write the timeline to, for ui.perfetto.dev.")
]
LadderOption = Annotated[
    bool,
    typer.Option(
        "--ladder",
        help="Print what batching, number formats, cores and other optimisations gain, one after the other.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def setting_flags() -> list[Any]:
    """Returns the flags that are fields of the engine's configuration."""
    from corepipe.cli.flags import fields  # noqa: PLC0415 -- heavy: the help of all commands does without

    return fields.parameters(
        [
            *fields.of_engine("instance", "mode", *fields.DEGREES),
            fields.TIMED_FORMAT,
            *fields.of_engine("profile", "max_model_len"),
            fields.drafts(
                "With --ladder: try speculative decoding, with an assumed share of drafts that are "
                "accepted; JSON as for corepipe simulate."
            ),
        ]
    )


def profile(
    ctx: typer.Context,
    model: Model,
    batch: Batch = 4,
    input_len: InputLen = 512,
    output_steps: Steps = 3,
    output: Output = None,
    ladder: LadderOption = False,
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
