"""The scoreboard of predictors: errors of this cost model beside those that others publish of theirs."""

from __future__ import annotations

from typing import NamedTuple

from corepipe.neuron.timing.uncertainty import record


class PublishedError(NamedTuple):
    """The error that a predictor publishes of itself, in percent and in its words; on what it was found, and
    whether that was kept from it."""

    predictor: str
    figure: str
    error: str
    found_on: str
    blind: str
    source: str


OTHERS = (
    PublishedError(
        "BLIS", "end to end", "6.7", "runs on GPUs", "unseen GPUs: 13 to 16", "inference-sim f90a1e3"
    ),
    PublishedError("BLIS", "first token", "17.6", "runs on GPUs", "not said", "inference-sim f90a1e3"),
    PublishedError("BLIS", "between tokens", "7.1", "runs on GPUs", "not said", "inference-sim f90a1e3"),
    PublishedError("Frontier", "throughput", "below 4 (mean)", "16 H800", "no", "Feng et al., preprint"),
    PublishedError("Frontier", "end to end", "2.6 to 6.4", "16 H800", "no", "Feng et al., preprint"),
    PublishedError("Vidur", "end to end", "below 9", "profiled GPUs", "no", "Agrawal et al., MLSys 2024"),
    PublishedError(
        "LLMServingSim", "first token", "up to 2.9 (bias)", "one profiled GPU", "no", "its page on validation"
    ),
    PublishedError(
        "LLMServingSim", "per token", "up to 1.7 (bias)", "one profiled GPU", "no", "its page on validation"
    ),
    PublishedError("AIConfigurator", "any", "none published", "kernels measured on GPUs", "-", "NVIDIA"),
    PublishedError("SGLang's simulator", "any", "none found", "-", "-", "-"),
)
"""The errors that others publish.  They profile kernels on the GPU that they predict; no Neuron device was
profiled here."""

FOUND_ON = "published Neuron runs"


def rows() -> list[PublishedError]:
    """Returns the errors of this cost model, of families and campaigns that were left out, and those of
    others."""
    scores, coverage = record()["scores"], {one["kind"]: one for one in record()["coverage"]}
    own = [
        PublishedError(
            "corepipe",
            one["kind"],
            f"{100 * one['median']:.1f} (p90 {100 * one['p90']:.0f})",
            f"{one['rows']} rows, {coverage[one['kind']]['units']} families in campaigns",
            "left out, with rules",
            FOUND_ON,
        )
        for one in scores
        if one["kind"] in coverage  # not those of rows of which something is assumed
    ]
    return [*own, *OTHERS]
