"""The work of `corepipe profile --ladder`: prints what each optimisation gains, as a table or a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from corepipe.cli.flags.options import Given
from corepipe.cli.output.common import print_json, results
from corepipe.cli.output.tables import Figures
from corepipe.cli.run.assumed_drafts import assumed_drafts
from corepipe.cli.run.software import ASSUMED, LADDER, GraphKind, software
from corepipe.engine.assembly.draft_plan import draft_architecture
from corepipe.models.registry import architecture
from corepipe.neuron.chips import profiles
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import hypothetical
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS
from corepipe.planning.planner.planner import longest_request
from corepipe.planning.profiling.ladder import Ladder, LadderWork, Rung, ladder, takes_images

SCHEMA = "corepipe.ladder/1"

ANSWER = 64
"""Tokens of an answer: --output-steps' most."""

SET = ("mode", "pipeline", "tensor", "data", "expert", "batch", "output_steps", "output", "kernel")
"""Flags that its rungs set."""


def run(given: Given) -> None:
    """Tries the optimisations one after the other and prints their gains.  Raises UserError for what does not
    fit a core."""
    given.refuse(SET, "is set by --ladder itself; leave it out")
    found = ladder(_work(given))
    if given["json"]:
        print_json(document(found))
    else:
        _print(found, assumes=given["profile"] is None)


def _work(given: Mapping[str, Any]) -> LadderWork:
    model = architecture(given["model"])
    graph = model.graph(FORMATS["bf16"])
    encodes, most = not graph.causal, model.max_positions
    tokens: int = most if takes_images(graph) else min(given["input_len"], most)
    answer = 0 if encodes else ANSWER
    longest = longest_request(model, tokens + answer, given["max_model_len"])
    guesses = assumed_drafts(given["speculative_config"], model)
    draft = None if guesses is None or guesses.model is None else draft_architecture(guesses.model)
    stack = given["profile"] or ASSUMED[LADDER][GraphKind.of(graph)]
    return LadderWork(
        model,
        TIMED_FORMATS[given["dtype"].value],
        find_instance(given["instance"]),
        profiles.profile(stack),
        tokens,
        answer,
        longest,
        () if guesses is None else guesses.synthetic_rates or (),
        draft,
    )


def document(found: Ladder) -> dict[str, object]:
    """The ladder for machines."""
    work = found.work
    return {
        "schema": SCHEMA,
        "emulated": True,
        **hypothetical(work.instance),
        "model": work.architecture.name,
        "instance": work.instance.name,
        "profile": work.profile.name,
        "input_len": work.input_len,
        "output_len": work.output_len,
        **({"assumed_acceptance_rates": list(work.rates)} if work.rates else {}),
        **({} if work.draft is None else {"draft_model": work.draft.name}),
        "unit": f"{found.unit}/s",
        "rungs": [_rung(rung) for rung in found.rungs],
        "without": [{"name": name, "why": why} for name, why in found.without],
    }


def _rung(rung: Rung) -> dict[str, object]:
    """Returns a rung for machines; with the degree of experts where they are divided."""
    setting = {**asdict(rung.setting), "format": rung.setting.format.name}
    if rung.setting.expert == 1:
        del setting["expert"]
    return {
        "name": rung.name,
        "per_second": rung.per_second,
        "batch_ms": rung.seconds * 1e3,
        "dollars_per_million": rung.dollars,
        "gain": rung.gain,
        "why": rung.why,
        "setting": setting,
    }


def rows(found: Ladder) -> list[tuple[str, ...]]:
    """Returns the cells of each rung: its name, results a second, the gain over the rung below, milliseconds
    of a batch, dollars for a million, and why."""
    return [
        (
            rung.name,
            f"{rung.per_second:,.0f}",
            "" if rung is found.rungs[0] else f"{rung.gain:.2f}",
            f"{rung.seconds * 1e3:.3g}",
            "-" if rung.dollars is None else f"{rung.dollars:.3g}",
            rung.why,
        )
        for rung in found.rungs
    ]


def headings(found: Ladder) -> tuple[str, ...]:
    """Returns the headings of `rows`."""
    return ("step", f"{found.unit}/s", "times", "ms a batch", "$ a million", "why")


def _print(found: Ladder, *, assumes: bool) -> None:
    """assumes: whether the software around the model is the command's choice."""
    console, work = results(), found.work
    graph = work.architecture.graph(work.format)
    what = "an image" if takes_images(graph) else f"{work.input_len} tokens"
    answer = f", {work.output_len} answered" if work.output_len else ""
    console.print(
        f"{work.architecture.name} on {work.instance.name} ({work.instance.standing}, profile "
        f"{work.profile.name}): {what}{answer}"
    )
    console.print(software(work.profile, graph if assumes else None), style="dim")
    if work.instance.hypothetical:
        console.print(f"hypothetical: {work.instance.hypothetical}", style="yellow")
    name, *figures, why = headings(found)
    console.print(Figures(name, *(f">{figure}" for figure in figures), why, rows=rows(found)))
    for name, why in found.without:
        console.print(f"- {name}: {why}")
