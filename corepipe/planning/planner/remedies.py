"""Remedies where a plan finds nothing: objectives that can be met, or an instance with more memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, floor, inf, log10

from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.planning.planner.bounds import PlanFailure, Reason
from corepipe.planning.planner.demand import Objectives
from corepipe.planning.planner.evaluate import SimulationEvaluator
from corepipe.planning.planner.planner import Plan
from corepipe.planning.planner.search_result import PlanOption, SimulatedOutcome
from corepipe.planning.planner.space import Candidate, DeploymentShape, PlannedDeployment

EASES = (1, 2, 3, 4, 6, 8)
"""Factors of the least number of instances with which the nearest shape is tried."""

AS_NEAR = 1.05
"""Factor of the smallest excess within which the deployment with the fewest instances is proposed."""

LATENCIES = frozenset({Reason.TTFT, Reason.TPOT})

Report = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Remedy:
    """Objectives that can be met, and the deployment that meets them."""

    objectives: Objectives
    option: PlanOption


def remedy(plan: Plan, report: Report) -> Remedy | None:
    """Returns the objectives nearest to the requested ones that the nearest shape meets in simulations.

    Returns None where the objectives are not what prevents a plan.
    """
    nearest, asked = plan.nearest, plan.inquiry.demand.objectives
    if nearest is None or nearest.failure.reason not in LATENCIES:
        return None
    options, limits = [], asked.tightened
    bench = _bench(plan, replace(asked, ttft=None, tpot=None))
    for done, deployment in enumerate(_deployments(plan, nearest.shape, bench)):
        report("looking for what would do", done / len(EASES))
        price = deployment.instances * bench.price(nearest.shape)
        options.append(PlanOption(deployment, price, bench.measure(deployment)))
    best = min(_excess(limits, option.outcome) for option in options)
    near = next(o for o in options if _excess(limits, o.outcome) <= AS_NEAR * best)
    return Remedy(_loosened(asked, near.outcome), near)


def _bench(plan: Plan, objectives: Objectives) -> SimulationEvaluator:
    inquiry = plan.inquiry
    prices = {name: price.per_hour for name, price in plan.prices.items()}
    demand = replace(inquiry.demand, objectives=objectives)
    return SimulationEvaluator(inquiry.architecture, demand, prices, plan.max_model_len, unfit=inquiry.unfit)


def _deployments(
    plan: Plan, shape: DeploymentShape, bench: SimulationEvaluator
) -> Iterator[PlannedDeployment]:
    """Yields deployments of the shape, with ever more instances, each with its best limits."""
    limits = plan.inquiry.space.limits(plan.max_model_len, bench.longest_prompt)
    able = [c for c in (Candidate(shape, limit) for limit in limits) if bench.failure(c) is None]
    for ease in EASES:
        easy = [PlannedDeployment(candidate, ease * bench.fewest(candidate)) for candidate in able]
        yield min(easy, key=lambda d: (bench.estimate(d.candidate, d.instances), d.instances))


def _excess(asked: Objectives, outcome: SimulatedOutcome) -> float:
    """Returns the factor by which the worse objective is exceeded; infinite below the rate."""
    if outcome.failure is not None:
        return inf
    pairs = ((outcome.ttft, asked.ttft), (outcome.tpot, asked.tpot))
    return max(1.0, *(seconds / limit for seconds, limit in pairs if limit is not None))


def _loosened(objectives: Objectives, outcome: SimulatedOutcome) -> Objectives:
    """Returns the objectives, with those that the outcome misses raised to it, with the margin."""
    ttft, tpot, left = objectives.ttft, objectives.tpot, 1 - objectives.margin
    if ttft is not None and outcome.ttft > ttft * left:
        ttft = _rounded_up(outcome.ttft / left)
    if tpot is not None and outcome.tpot > tpot * left:
        tpot = _rounded_up(outcome.tpot / left)
    return replace(objectives, ttft=ttft, tpot=tpot)


def _rounded_up(seconds: float) -> float:
    """Rounds up to two digits of milliseconds."""
    milliseconds = seconds * 1e3
    unit = 10.0 ** (floor(log10(milliseconds)) - 1)
    return ceil(milliseconds / unit) * unit / 1e3


def roomier(plan: Plan) -> DeploymentShape | None:
    """Returns the shape that holds the model on the cheapest instance that does, where only memory
    prevents a plan; instances without a price come last.  Returns None where something else does, or no
    instance holds it."""
    if {r.failure.reason for r in plan.search.rejected} - {Reason.MEMORY, Reason.UNSUPPORTED}:
        return None
    market, inquiry = plan.inquiry.market, plan.inquiry
    prices = [market.prices.get(i.name, market.purchase, market.region) for i in INSTANCES]
    order = sorted((price.per_hour if price else inf, n) for n, price in enumerate(prices))
    space = replace(inquiry.space, instances=tuple(INSTANCES[n] for _, n in order))
    bench = _bench(plan, inquiry.demand.objectives.tightened)
    limits = next(space.limits(plan.max_model_len, bench.longest_prompt))
    shapes = (shape for shape in space.shapes(*plan.sizes) if inquiry.accepts(shape))
    return next((s for s in shapes if _holds(bench.failure(Candidate(s, limits)))), None)


def _holds(failure: PlanFailure | None) -> bool:
    return failure is None or failure.reason not in {Reason.MEMORY, Reason.UNSUPPORTED}
