"""`corepipe fit`: refines the cost model with a user's own measurements, into a profile file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

DEPLOYMENT = "What a load test ran on"

Files = Annotated[
    list[Path],
    typer.Argument(
        help="CSV files of measurements, and results of corepipe bench, vllm bench serve or guidellm."
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write the profile to.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Model that was served; default: as the result names it.", rich_help_panel=DEPLOYMENT
    ),
]
Instance = Annotated[
    str | None, typer.Option("--instance", help="Instance that it ran on.", rich_help_panel=DEPLOYMENT)
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", help="Number format of the model, as in the rows of a file.", rich_help_panel=DEPLOYMENT
    ),
]
Tensor = Annotated[
    int, typer.Option("--tensor", help="Cores that share each layer.", min=1, rich_help_panel=DEPLOYMENT)
]
Pipeline = Annotated[
    int, typer.Option("--pipeline", help="Pipeline stages.", min=1, rich_help_panel=DEPLOYMENT)
]
Data = Annotated[int, typer.Option("--data", help="Replicas.", min=1, rich_help_panel=DEPLOYMENT)]
Expert = Annotated[
    int,
    typer.Option(
        "--expert",
        help="Cores of a stage that divided the experts of a mixture-of-experts model.",
        min=1,
        rich_help_panel=DEPLOYMENT,
    ),
]
Sequences = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs", help="Most sequences in a batch of a replica.", min=1, rich_help_panel=DEPLOYMENT
    ),
]
Longest = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        help="Most tokens of a request: its prompt and its answer together.",
        min=1,
        rich_help_panel=DEPLOYMENT,
    ),
]


def setting_flags() -> list[Any]:
    """Returns the flags that are fields of the engine's configuration."""
    from corepipe.cli.flags.fields import of_engine, parameters  # noqa: PLC0415 -- heavy: a help does without

    return parameters(of_engine("profile"))


def fit(
    ctx: typer.Context,
    files: Files,
    output: Output,
    model: Model = None,
    instance: Instance = None,
    dtype: Dtype = "bf16",
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    data: Data = 1,
    expert: Expert = 1,
    max_num_seqs: Sequences = None,
    max_model_len: Longest = None,
) -> None:
    """Refine predictions of your model with your own measurements, into a profile for --profile.

    A few rows move what is particular to the model, and the constants little.  Rows that contradict physics,
    or one another, are refused by their number.  The profile is that of --profile, or of vllm-neuron.
    """
    from corepipe.cli.run.fit import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(ctx.params)
