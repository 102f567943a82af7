"""The runtime profile of a row of measurements: its `profile` column, or derived from its `task` and `sdk`.

`task` names the software, `sdk` its release.  No model's name is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from corepipe.errors import UserError
from corepipe.neuron.chips.profiles import PROFILES, RuntimeProfile
from corepipe.neuron.chips.profiles import profile as find_profile
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import SOURCE, InputKind
from corepipe.planning.calibration.rows import Raw, RowDegrees, Unpredictable, text

NXDI_SINCE = 20
"""SDK 2.20 is the last whose language models were measured with transformers-neuronx."""

NXDI_YEAR = 2025
"""Year in which optimum-neuron's exports through NxD Inference begin."""

COPIED_ONCE_SINCE = (10, 0)
"""Release of SDK 2 before which texts' results took the host's link twice as long (`chips.profiles`)."""

FUSED_SINCE, FLASH_SINCE = (18, 1), (19, 0)
"""Releases of SDK 2 in which transformers-neuronx changed prompts' attention (neuron/chips/profiles.py)."""

ENCODERS = frozenset({"encoder", "vision", "vision-transformer", "image-classification", "embedding", "cnn"})
"""Tasks of models that run once over their input."""


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """The properties of a model on which the software depends: whether it reads `images`, and whether it
    decodes the output of an encoder (`translates`)."""

    images: bool = False
    translates: bool = False

    @classmethod
    def of(cls, graph: Graph) -> ModelTraits:
        images = any(given.kind in {InputKind.PATCHES, InputKind.PIXELS} for given in graph.inputs)
        return cls(images, SOURCE in graph.rows)


def profile_of(
    row: Raw, batch: int, degrees: RowDegrees, kind: ModelTraits = ModelTraits()
) -> RuntimeProfile:
    """Returns the profile of a row.  Raises Unpredictable for a task or a profile that is not known."""
    if given := text(row, "profile"):
        try:
            return find_profile(given)
        except UserError as error:
            raise Unpredictable(str(error), "profile") from error
    task, sdk = text(row, "task").lower(), text(row, "sdk")
    match task:
        case "static-batch(optimum-neuron)":
            return PROFILES[_static(sdk, batch)]
        case "text-generation" | "text-generation(in+out)" | "encoder-decoder" | "encoder-decoder(in+out)":
            return PROFILES["beam-search" if kind.translates else _decoder(task, sdk)]
        case "serving-tgi":
            return PROFILES["optimum-tnx" if batch > 1 else "transformers-neuronx"]
        case "serving":
            return PROFILES["optimum-nxdi"]
        case _ if task in ENCODERS:
            return PROFILES[_encoder(degrees, text(row, "instance"), sdk, kind)]
        case _:
            raise Unpredictable(
                f"no runtime profile is known for the task {task!r:.40}; name one in `profile`", "task"
            )


def _static(sdk: str, batch: int) -> str:
    """Returns the profile of optimum-neuron: one prompt at a time in one bucket, but for a batch of one
    before NxD Inference."""
    year = re.search(r"\b(20\d\d)-\d\d", sdk)
    if (year and int(year[1]) >= NXDI_YEAR) or not (year or _older(sdk)):
        return "optimum-nxdi"
    return "optimum-tnx" if batch > 1 else "transformers-neuronx"


def _encoder(degrees: RowDegrees, instance: str, sdk: str, kind: ModelTraits) -> str:
    """Returns an encoder's profile: NeuronPerf kept two batches in flight on each of several cores: of
    texts on inf1, of images since."""
    if degrees.pipeline > 1:
        return "neuroncore-pipeline"
    on_inf1 = instance.startswith("inf1")
    if degrees.data > 1 and on_inf1 is not kind.images:
        return "data-parallel-2"
    release = _release(sdk)
    early = release is not None and release < COPIED_ONCE_SINCE
    return "data-parallel-sdk-2.9" if early and not on_inf1 and not kind.images else "data-parallel"


def _decoder(task: str, sdk: str) -> str:
    """Returns a decoder's profile by release: NxD Inference, or before it transformers-neuronx, whose
    samples' layout is BSH since SDK 2.18.1, and which has a flash kernel since 2.19.  Other tasks' tables
    are older."""
    release = _release(sdk)
    if task == "text-generation" and not _older(sdk):
        return "nxdi"
    if release is None or FUSED_SINCE <= release < FLASH_SINCE:
        return "transformers-neuronx"
    return "transformers-neuronx-hsb" if release < FUSED_SINCE else "transformers-neuronx-flash"


def _older(sdk: str) -> bool:
    """Tells whether an SDK release has transformers-neuronx: 2.20 and before; an unknown one is new."""
    release = _release(sdk)
    return release is not None and 3 <= release[0] <= NXDI_SINCE


def _release(sdk: str) -> tuple[int, int] | None:
    """Returns a release of SDK 2: (18, 1) for 2.18.1; None where it is not stated."""
    found = re.match(r"2\.(\d+)(?:\.(\d+))?", sdk)
    return None if found is None else (int(found[1]), int(found[2] or 0))
