"""Which runtime profile a row of measurements was made with: its `profile` column, or its `task` and `sdk`.

`task` names the software, `sdk` its release.  No model's name is looked at.
"""

from __future__ import annotations

import re

from corepipe.errors import UserError
from corepipe.neuron.profiles import PROFILES, RuntimeProfile
from corepipe.neuron.profiles import profile as find_profile
from corepipe.planning.calibration.rows import Degrees, Raw, Unpredictable, text

NXDI_SINCE = 20
"""SDK 2.20 is the last whose language models were measured with transformers-neuronx."""

NXDI_YEAR = 2025
"""optimum-neuron's exports through NxD Inference begin in this year."""

CONVOLUTIONS = "convolutional networks are not modelled"

ENCODERS = frozenset({"encoder", "vision", "vision-transformer", "image-classification", "embedding"})
"""Tasks of models that are run once over their input."""


def profile_of(row: Raw, batch: int, degrees: Degrees) -> RuntimeProfile:  # noqa: PLR0911 -- one return a kind
    """The profile of a row.  Raises Unpredictable for a task or a profile that is not known."""
    if given := text(row, "profile"):
        try:
            return find_profile(given)
        except UserError as error:
            raise Unpredictable(str(error)) from error
    task, sdk = text(row, "task").lower(), text(row, "sdk")
    match task:
        case "static-batch(optimum-neuron)":
            return PROFILES[_static(sdk, batch)]
        case "text-generation":
            return PROFILES["transformers-neuronx" if _older(sdk) else "nxdi"]
        case "text-generation(in+out)" | "encoder-decoder" | "encoder-decoder(in+out)":
            return PROFILES["transformers-neuronx"]
        case "serving-tgi":
            return PROFILES["optimum-tnx" if batch > 1 else "transformers-neuronx"]
        case "serving":
            return PROFILES["optimum-nxdi"]
        case _ if task in ENCODERS:
            return PROFILES[_encoder(degrees, text(row, "instance"))]
        case "cnn":
            raise Unpredictable(CONVOLUTIONS)
        case _:
            raise Unpredictable(
                f"no runtime profile is known for the task {task!r:.40}; name one in `profile`"
            )


def _static(sdk: str, batch: int) -> str:
    """optimum-neuron: one prompt at a time in one bucket, but for a batch of one before NxD Inference."""
    year = re.search(r"\b(20\d\d)-\d\d", sdk)
    if (year and int(year[1]) >= NXDI_YEAR) or not (year or _older(sdk)):
        return "optimum-nxdi"
    return "optimum-tnx" if batch > 1 else "transformers-neuronx"


def _encoder(degrees: Degrees, instance: str) -> str:
    """NeuronPerf on inf1 kept two batches in flight on each of several cores."""
    if degrees.pipeline > 1:
        return "neuroncore-pipeline"
    return "data-parallel-2" if instance.startswith("inf1") and degrees.data > 1 else "data-parallel"


def _older(sdk: str) -> bool:
    """Whether an SDK release has transformers-neuronx: 2.20 and before; an unknown one is new."""
    release = re.match(r"2\.(\d+)", sdk)
    return release is not None and 3 <= int(release[1]) <= NXDI_SINCE
