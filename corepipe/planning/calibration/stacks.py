"""The runtime profile of a row of measurements: its `profile` column, or derived from other columns.

`task` names the software, `sdk` its release or day, and `source` the day of a server's report.  No name of a
model is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import exp

from corepipe.errors import UserError
from corepipe.neuron.chips.profiles import profile as find_profile
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.chips.scales import Scales
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import SOURCE, InputKind
from corepipe.planning.calibration.rows import DAY, Raw, RowDegrees, Unpredictable, text
from corepipe.planning.calibration.rules import IN_FORCE, Rules

NXDI_SINCE = 20
"""SDK 2.20 is the last whose language models were measured with transformers-neuronx."""

NXDI_YEAR = 2025
"""Year in which optimum-neuron's exports through NxD Inference begin."""

COPIED_ONCE_SINCE = (10, 0)
"""Release of SDK 2 before which texts' results took the host's link twice as long (`chips.profiles`)."""

FUSED_SINCE, FLASH_SINCE = (18, 1), (19, 0)
"""Releases of SDK 2 in which transformers-neuronx changed prompts' attention (neuron/chips/profiles.py)."""

STATIC = "static-batch(optimum-neuron)"
"""Task of optimum-neuron's benchmark of whole batches."""

DRIFTS_SINCE, UNDRIFTED = 10, 20
"""The release of SDK 2 from which on encoders of texts on NeuronCore-v2 became faster (`rules.DRIFT`), and
that whose encoders take what the constants say."""

TGI = "/text-generation-inference/"
"""Folder of the reports of optimum-neuron's servers that TGI ran; others are vLLM's."""

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
    row: Raw, batch: int, degrees: RowDegrees, kind: ModelTraits = ModelTraits(), rules: Rules = IN_FORCE
) -> RuntimeProfile:
    """Returns the profile of a row.  Raises Unpredictable for a task or a profile that is not known."""
    if given := text(row, "profile"):
        try:
            return find_profile(given)
        except UserError as error:
            raise Unpredictable(str(error), "profile") from error
    chosen = rules.profiles[_name(row, batch, degrees, kind)]
    encodes = text(row, "task").lower() in ENCODERS
    return _drifted(chosen, row, kind, rules.drift) if encodes else chosen


def _name(row: Raw, batch: int, degrees: RowDegrees, kind: ModelTraits) -> str:
    task, sdk, instance = text(row, "task").lower(), text(row, "sdk"), text(row, "instance")
    match task:
        case _ if task == STATIC:
            return _static(sdk, batch)
        case "text-generation" | "text-generation(in+out)" | "encoder-decoder" | "encoder-decoder(in+out)":
            return "beam-search" if kind.translates else _decoder(task, sdk, instance)
        case "serving-tgi":
            return "optimum-tnx" if batch > 1 else "transformers-neuronx"
        case "serving":
            return _server(text(row, "source"))
        case _ if task in ENCODERS:
            return _encoder(degrees, instance, sdk, kind)
        case _:
            raise Unpredictable(
                f"no runtime profile is known for the task {task!r:.40}; name one in `profile`", "task"
            )


def _server(source: str) -> str:
    """Returns the profile of a server of optimum-neuron by the harness and the day that its source names; of
    another, the profile of one whose software is unknown."""
    day = DAY.search(source)
    if day is None:
        return "stack-unknown"
    if int(day[1][:4]) < NXDI_YEAR:
        return "optimum-tnx-host-sampling"
    return "optimum-nxdi-tgi" if TGI in source else "optimum-nxdi"


def _static(sdk: str, batch: int) -> str:
    """Returns the profile of optimum-neuron: one prompt at a time in one bucket, but for a batch of one
    before NxD Inference."""
    if not _before_nxdi(sdk):
        return "optimum-nxdi"
    return "optimum-tnx" if batch > 1 else "transformers-neuronx"


def _before_nxdi(sdk: str) -> bool:
    """Tells whether optimum-neuron ran transformers-neuronx, by the day or the SDK of a measurement."""
    year = re.search(r"\b(20\d\d)-\d\d", sdk)
    return int(year[1]) < NXDI_YEAR if year else _older(sdk)


def sends_one_more(row: Raw) -> bool:
    """Tells whether the benchmark sent a token more than it says: optimum-neuron's static one did until 2024
    (huggingface/optimum-neuron benchmark/text-generation/benchmark.py), so that a prompt that just fills a
    bucket takes the next."""
    return text(row, "task").lower() == STATIC and _before_nxdi(text(row, "sdk"))


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


def _drifted(profile: RuntimeProfile, row: Raw, kind: ModelTraits, drift: float) -> RuntimeProfile:
    """Returns an encoder's profile with the speed of its SDK release."""
    release = _release(text(row, "sdk"))
    if kind.images or text(row, "instance").startswith("inf1") or not release or release[0] < DRIFTS_SINCE:
        return profile
    return replace(profile, scales=Scales(prompt=exp(-drift * (release[0] - UNDRIFTED))))


def _decoder(task: str, sdk: str, instance: str) -> str:
    """Returns a decoder's profile by release: NxD Inference, or before it transformers-neuronx, whose
    samples' layout is BSH since SDK 2.18.1, and which has a flash kernel since 2.19.  Other tasks' tables
    are older."""
    release = _release(sdk)
    if task == "text-generation" and not _older(sdk):
        return "nxdi-trn2" if instance.startswith("trn2") else "nxdi"
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
