"""Refine predictions of your model with your own measurements, into a profile for --profile.

A few rows move what is particular to the model, and the constants little.  Rows that contradict physics,
or one another, are refused by their number.  The profile is that of --profile, or of vllm-neuron.
"""

from __future__ import annotations

from functools import partial
from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import REQUIRED, argument, option


def flags() -> list[Parameter]:
    """Returns the flags."""
    from corepipe.cli.flags.fields import of_engine  # noqa: PLC0415 -- heavy: a help does without

    ran = partial(option, panel="What a load test ran on")
    return [
        argument(
            "files",
            list[Path],
            "CSV files of measurements, and results of corepipe bench, vllm bench serve or guidellm.",
        ),
        *of_engine("profile"),
        option("--output -o", Path, "File to write the profile to.", REQUIRED),
        ran("--model", str, "Model that was served; default: as the result names it."),
        ran("--instance", str, "Instance that it ran on."),
        ran("--dtype", str, "Number format of the model, as in the rows of a file.", "bf16"),
        ran("--tensor", int, "Cores that share each layer.", 1, min=1),
        ran("--pipeline", int, "Pipeline stages.", 1, min=1),
        ran("--data", int, "Replicas.", 1, min=1),
        ran(
            "--expert",
            int,
            "Cores of a stage that divided the experts of a mixture-of-experts model.",
            1,
            min=1,
        ),
        ran("--max-num-seqs", int, "Most sequences in a batch of a replica.", min=1),
        ran("--max-model-len", int, "Most tokens of a request: its prompt and its answer together.", min=1),
    ]
