"""Show where the time of a prefill and of decode steps goes on the emulated device, and what would help.

Reads no weights.  The summary is in neuron-profile's terms; the timeline is a Perfetto trace.
"""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import MODEL, as_json, option


def flags() -> list[Parameter]:
    """Returns the flags."""
    from corepipe.cli.flags import fields  # noqa: PLC0415 -- heavy: the help of all commands does without

    return [
        MODEL,
        *fields.of_engine("instance", "mode", *fields.DEGREES),
        fields.timed_format(),
        *fields.of_engine("profile", "kernels", "max_model_len"),
        fields.drafts(
            "With --ladder: try speculative decoding, with an assumed share of drafts that are "
            "accepted; JSON as for corepipe simulate."
        ),
        option("--batch", int, "Sequences in a decode step.", 4, min=1, max=1024),
        option("--input-len", int, "Prompt tokens of each sequence.", 512, min=1),
        option("--output-steps", int, "Decode steps after the prefill.", 3, min=0, max=64),
        option("--output -o", Path, "File to write the timeline to, for ui.perfetto.dev."),
        option(
            "--ladder",
            bool,
            "Print what batching, number formats, cores and other optimisations gain, one after the other.",
        ),
        as_json(),
    ]
