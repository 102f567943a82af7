"""A plan as a document for programs; `cli.plan` shows the same to people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.neuron.chips.hardware import hypothetical
from corepipe.neuron.timing.uncertainty import Figure
from corepipe.planning.planner.bounds import Reason
from corepipe.planning.planner.certainty import FIGURES
from corepipe.planning.planner.confidence import MEDIAN, METRICS, NOT_VALIDATED
from corepipe.planning.planner.demand import Objectives
from corepipe.planning.planner.planner import Plan
from corepipe.planning.planner.remedies import Remedy, roomier
from corepipe.planning.planner.search_result import CostlierShape, PlanOption, RejectedShape
from corepipe.planning.planner.space import BLOCK_SIZE, DeploymentShape, PlannedDeployment

SCHEMA = "corepipe.plan/1"
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class PlanCommands:
    """The commands that serve and simulate a choice, as words; serve None: it cannot be served.

    measure: the commands of the next measurement, where one was requested, or the reason why there is none.
    vllm: the command that runs a replica on the hardware, or the reason why no stack does; before: the
    preparations for it; doubt: the reason why it may not run.
    """

    serve: list[str] | None
    simulate: list[str]
    measure: tuple[list[str], ...] | str | None = None
    vllm: list[str] | str = ""
    before: tuple[str, ...] = ()
    doubt: str | None = None


def document(plan: Plan, remedy: Remedy | None, commands: PlanCommands | None = None) -> dict[str, object]:
    """Returns the plan: milliseconds, dollars per hour.  The same plan gives the same document."""
    inquiry, found = plan.inquiry, plan.search
    demand = inquiry.demand
    roomy = None if plan.options else roomier(plan)
    return {
        "schema": SCHEMA,
        "emulated": True,
        "model": inquiry.architecture.name,
        "objectives": objectives(demand.objectives),
        "margin_percent": demand.objectives.margin * 100,
        "cut_short": found.cut_short,
        "workload": {
            "rate": demand.objectives.rate,
            "input_len": demand.input_len.spec,
            "output_len": demand.output_len.spec,
            "seed": demand.seed,
        },
        "max_model_len": plan.max_model_len,
        "purchase": inquiry.market.purchase.value,
        "region": inquiry.market.region,
        "choice": option(plan, plan.best) if plan.best else None,
        "commands": commands
        and {
            "serve": commands.serve and shlex.join(commands.serve),
            "simulate": shlex.join(commands.simulate),
            "vllm": None if isinstance(commands.vllm, str) else shlex.join(commands.vllm),
            "before_vllm": list(commands.before),
            "vllm_may_not_run": commands.doubt,
        },
        "no_stack_runs_it": commands.vllm if commands and isinstance(commands.vllm, str) else None,
        "confidence": _confidence(plan),
        "next_measurement": _measurement(plan, commands),
        "no_measurement": commands.measure if commands and isinstance(commands.measure, str) else None,
        "tied": [option(plan, o) for o in plan.tied],
        "pareto": [option(plan, o) for o in plan.front],
        "failed": [_rejected(r) for r in found.rejected],
        "dearer": [_dearer(d) for d in found.dearer],
        "without_price": list(plan.unpriced),
        "priced_by": {name: inquiry.market.prices.otherwise(name) for name in plan.unpriced},
        "nearest": None if plan.options or plan.nearest is None else _rejected(plan.nearest),
        "would_fit": roomy and _shape(roomy),
        "would_be_met": remedy
        and {"objectives": objectives(remedy.objectives), "by": option(plan, remedy.option)},
        "searched": {"configurations": found.configurations, "simulations": found.simulations},
    }


def objectives(asked: Objectives) -> dict[str, object]:
    return {
        "ttft_ms": asked.ttft and asked.ttft * MILLISECONDS,
        "tpot_ms": asked.tpot and asked.tpot * MILLISECONDS,
        "percentile": asked.percentile,
    }


def option(plan: Plan, chosen: PlanOption) -> dict[str, object]:
    """Returns a deployment that meets the objectives."""
    shape, outcome = chosen.deployment.candidate.shape, chosen.outcome
    price = plan.prices[shape.instance]
    return {
        **deployment(chosen.deployment),
        **hypothetical(shape.device),
        "price_per_hour": chosen.price,
        "price_source": price.source,
        "dollars_per_million_output_tokens": million(plan, chosen),
        "predicted": {
            "ttft_ms": outcome.ttft * MILLISECONDS,
            "tpot_ms": outcome.tpot * MILLISECONDS or None,
            "e2e_ms": outcome.latency * MILLISECONDS,
            "output_tokens_per_second": outcome.tokens_per_second * chosen.deployment.instances,
        },
        "intervals": _intervals(plan, chosen),
        "below_objective_percent": {name: below * 100 for name, below, _ in distances(plan, chosen)},
        "validation": validation(plan, shape),
    }


def _intervals(plan: Plan, chosen: PlanOption) -> dict[str, object]:
    """Returns [least, most] of each predicted figure, and of the price for the demanded rate."""
    known = plan.certainty
    latencies = {name: known.latency(chosen, name) for name in FIGURES}
    return {
        "level": known.level,
        **{f"{name}_ms": [end * MILLISECONDS for end in ends] for name, ends in latencies.items()},
        "output_tokens_per_second": known.rate(chosen),
        "price_per_hour": known.price(chosen),
        "basis": known.interval(chosen, Figure.THROUGHPUT).basis,
        "or_profile": chosen.deployment.candidate.shape.profile.otherwise or None,
        "may_miss": known.may_miss(chosen),
        "confidence": known.confidence(chosen),
    }


def _confidence(plan: Plan) -> dict[str, object]:
    """Returns what the intervals distinguish."""
    return {
        "level": plan.certainty.level,
        "ranked_by_it": plan.certainty.ranks,
        "undecided": plan.certainty.undecided(plan.options),
        "not_told_from_the_first": [option(plan, one) for one in plan.alike],
    }


def _measurement(plan: Plan, commands: PlanCommands | None) -> dict[str, object] | None:
    found = plan.certainty.next_measurement(plan.options)
    if found is None or commands is None or not isinstance(commands.measure, tuple):
        return None
    return {
        **deployment(found.option.deployment),
        "tells_apart": found.separates,
        "of": found.rivals,
        "price_per_hour": found.price,
        "commands": [shlex.join(command) for command in commands.measure],
    }


def distances(plan: Plan, chosen: PlanOption) -> Iterator[tuple[str, float, float | None]]:
    """Yields for each objective: ttft or tpot, the share by which the prediction is below it, and the
    error of such predictions (None: not validated)."""
    asked, outcome = plan.inquiry.demand.objectives, chosen.outcome
    for name, limit, seconds in (("ttft", asked.ttft, outcome.ttft), ("tpot", asked.tpot, outcome.tpot)):
        if limit is not None:
            error = plan.inquiry.validation.of(name, chosen.deployment.candidate.shape).error
            yield name, 1 - seconds / limit, error


def million(plan: Plan, chosen: PlanOption) -> float:
    """Returns the dollars for a million output tokens at the demanded rate."""
    demand = plan.inquiry.demand
    tokens = demand.objectives.rate * float(demand.sizes.answers.mean())
    return chosen.price / 3600 / tokens * 1e6


def validation(plan: Plan, shape: DeploymentShape) -> dict[str, object]:
    """Returns the error of each kind of figure, in percent; null where it is not validated."""
    figures: dict[str, object] = {}
    for figure in METRICS:
        known = plan.inquiry.validation.of(figure, shape)
        error = None if known.error is None else known.error * 100
        figures[figure] = {"error_percent": error, "basis": known.basis}
    return {**figures, "percentile": percentile_note(plan)}


def percentile_note(plan: Plan) -> str:
    """Returns a note on the validation of the percentile at which the objectives are held."""
    percentile = plan.inquiry.demand.objectives.percentile
    return "as the median" if percentile == MEDIAN else f"p{percentile:g} {NOT_VALIDATED}"


def deployment(chosen: PlannedDeployment) -> dict[str, object]:
    """Returns the settings, named as the flags of `corepipe serve`."""
    limits = chosen.candidate.limits
    return {
        "instances": chosen.instances,
        **_shape(chosen.candidate.shape),
        "max_model_len": limits.max_model_len,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "block_size": BLOCK_SIZE,
        **_guesses(limits.speculative_config),
    }


def _guesses(assumed: SpeculativeConfig | None) -> dict[str, object]:
    return {} if assumed is None else {"speculative_config": assumed.as_given(), "assumed": True}


def _shape(shape: DeploymentShape) -> dict[str, object]:
    place = shape.placement
    return {
        "instance": shape.instance,
        "lnc": shape.device.lnc,
        **place.degrees,
        "dtype": shape.format.name,
        "profile": shape.profile.name,
        "policy": shape.profile.policy,
    }


def _rejected(rejected: RejectedShape) -> dict[str, object]:
    failure = rejected.failure
    return {**_shape(rejected.shape), "reason": failure.reason.value, "detail": failure.text}


def _dearer(dearer: CostlierShape) -> dict[str, object]:
    failure = dearer.failure
    return {
        **_shape(dearer.shape),
        "price_per_hour_at_least": dearer.price,
        "fewer_fail_by": failure and {"reason": failure.reason.value, "detail": failure.text},
    }


def reasons(plan: Plan) -> Iterator[tuple[str, str, int, str]]:
    """Yields, for people, (instance, reason, number of shapes, the nearest of them) for shapes that fail
    at any price, and for those that would suffice at a higher price than others."""
    order = {i.name: n for n, i in enumerate(plan.inquiry.space.instances)}
    failures = [
        (r.shape, r.failure.reason.value, r.failure.excess, r.failure.text) for r in plan.search.rejected
    ]
    failures += [
        (d.shape, Reason.PRICE.value, d.price, f"{d.failure.text}; more would cost {d.price:.4g} $/h")
        for d in plan.search.dearer
        if d.failure is not None
    ]

    def key(failure: tuple[DeploymentShape, str, float, str]) -> tuple[int, str]:
        return order[failure[0].instance], failure[1]

    for (_, reason), group in groupby(sorted(failures, key=key), key):
        several = list(group)
        shape, _, _, text = min(several, key=lambda failure: failure[2])
        yield shape.instance, reason, len(several), f"{shape}: {text}"
