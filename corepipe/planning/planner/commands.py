"""Commands that serve a plan's deployment emulated, and that simulate it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from corepipe.planning.planner.demand import Demand
from corepipe.planning.planner.evaluate import QUEUE
from corepipe.planning.planner.space import BLOCK_SIZE, PlannedDeployment

COLUMNS = 78
"""Columns of a printed command; a longer one is continued on the next line."""

INDENT = "  "

MEASURED_REQUESTS = 1000
"""Requests of a measurement: they take less than an hour at usual rates."""

MEASURED = "measured"
"""Directory that a measurement is written to."""


def serve_command(
    model: str, deployment: PlannedDeployment, stack: str, *, weights: bool
) -> list[str] | None:
    """Returns `corepipe serve` for one instance; None for logical cores that are not the instance's default,
    which it cannot serve.

    stack: the profile's name as given.  weights: whether the model can be loaded; else the default model
    answers at its pace.
    """
    if deployment.candidate.shape.lnc is not None:
        return None
    named = [model] if weights else ["--timing-model", model]
    flags = {**_flags(deployment, stack), "--clock": "device"}
    return ["corepipe", "serve", *named, *_words(flags)]


def simulate_command(model: str, deployment: PlannedDeployment, stack: str, demand: Demand) -> list[str]:
    """Returns `corepipe simulate` for one instance, with the requests of the plan."""
    rate = demand.objectives.rate / deployment.instances
    lnc = deployment.candidate.shape.lnc
    flags = {
        **_flags(deployment, stack),
        **({} if lnc is None else {"--lnc": lnc}),
        "--max-num-queued-reqs": QUEUE,
        "--max-num-queued-tokens": QUEUE,
        "--rate": repr(rate),
        "--requests": demand.tightened.requests_at(rate),
        "--input-len": demand.input_len.spec,
        "--output-len": demand.output_len.spec,
        "--seed": demand.seed,
        **_slo(demand),
    }
    return ["corepipe", "simulate", model, *_words(flags)]


def simulate_once_command(
    model: str, deployment: PlannedDeployment, stack: str, load: Mapping[str, object]
) -> list[str]:
    """Returns `corepipe simulate` for one instance of a model that runs once over its input.  load: its
    flags; those that are None are left out."""
    queues = {"--max-num-queued-reqs": QUEUE, "--max-num-queued-tokens": QUEUE}
    flags = {**_flags(deployment, stack), **queues, **load}
    given = {name: value for name, value in flags.items() if value is not None}
    return ["corepipe", "simulate", model, *_words(given)]


def measure_commands(
    model: str, deployment: PlannedDeployment, stack: str, demand: Demand
) -> tuple[list[str], ...]:
    """Returns `corepipe bench` for one instance under its load, and `corepipe fit` of its result."""
    rate = demand.objectives.rate / deployment.instances
    shape, place = deployment.candidate.shape, deployment.candidate.shape.placement
    bench = {
        "--rate": repr(rate),
        "--requests": min(MEASURED_REQUESTS, demand.tightened.requests_at(rate)),
        "--input-len": demand.input_len.spec,
        "--output-len": demand.output_len.spec,
        "--seed": demand.seed,
        "--output": MEASURED,
    }
    fit = {
        "--model": model,
        "--instance": shape.instance,
        "--tensor": place.tensor,
        "--pipeline": place.pipeline,
        "--data": place.data,
        **({"--expert": place.expert} if place.expert > 1 else {}),
        "--dtype": shape.format.name,
        "--max-num-seqs": deployment.candidate.limits.max_num_seqs,
        "--max-model-len": deployment.candidate.limits.max_model_len,
        "--profile": stack,
        "--output": "measured.json",
    }
    return (
        ["corepipe", "bench", "http://HOST:8000", *_words(bench)],
        ["corepipe", "fit", f"{MEASURED}/result.json", *_words(fit)],
    )


def wrapped(command: list[str]) -> str:
    """Returns a command for a shell, in lines that fit a terminal."""
    lines = [INDENT + shlex.join(command[:2])]
    for words in _pairs(command[2:]):
        if len(lines[-1]) + 1 + len(words) > COLUMNS:
            lines.append(2 * INDENT + words)
        else:
            lines[-1] += " " + words
    return " \\\n".join(lines)


def _pairs(words: list[str]) -> list[str]:
    """Returns each flag with its value."""
    parts: list[str] = []
    for word in words:
        if parts and parts[-1].startswith("--") and " " not in parts[-1]:
            parts[-1] += " " + shlex.quote(word)
        else:
            parts.append(shlex.quote(word))
    return parts


def _flags(deployment: PlannedDeployment, stack: str) -> dict[str, object]:
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    place, guesses = shape.placement, limits.speculative_config
    return {
        "--instance": shape.instance,
        "--pipeline": place.pipeline,
        "--tensor": place.tensor,
        "--data": place.data,
        **({"--expert": place.expert} if place.expert > 1 else {}),
        "--dtype": shape.format.name,
        "--profile": stack,
        "--policy": shape.profile.policy,
        "--max-model-len": limits.max_model_len,
        "--max-num-seqs": limits.max_num_seqs,
        "--max-num-batched-tokens": limits.max_num_batched_tokens,
        "--block-size": BLOCK_SIZE,
        **({} if guesses is None else {"--speculative-config": json.dumps(guesses.as_given())}),
        **({} if shape.profile.kernels is None else {"--kernel": [*shape.profile.kernels.texts]}),
    }


def _slo(demand: Demand) -> dict[str, object]:
    asked = demand.objectives
    limits = {"ttft": asked.ttft, "tpot": asked.tpot}
    text = " ".join(
        f"{name}:{seconds * 1e3:.12g}ms" for name, seconds in limits.items() if seconds is not None
    )
    return {"--slo": text} if text else {}


def _words(flags: Mapping[str, object]) -> list[str]:
    several = ((flag, value if isinstance(value, list) else [value]) for flag, value in flags.items())
    return [str(part) for flag, values in several for value in values for part in (flag, value)]
