"""The work of `corepipe plan`: from the flags to an inquiry, from a plan to text, a document or a
manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from corepipe.cli.flags import options
from corepipe.cli.flags.options import Given
from corepipe.cli.flags.settings import configured
from corepipe.cli.output.common import (
    errors,
    print_json,
    results,
)
from corepipe.cli.run.assumed_drafts import assumed_drafts
from corepipe.cli.run.kernels import asked_kernels
from corepipe.cli.run.plans.given import asked_demand, asked_formats, asked_instances, asked_market, searching
from corepipe.cli.run.plans.view import doubts, note, print_plan, sentence
from corepipe.engine.assembly.device_plan import graph_of, timed_task
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models import published
from corepipe.models.config import ModelConfig
from corepipe.models.registry import Architecture, architecture
from corepipe.neuron.chips import profiles
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.formats import FORMATS
from corepipe.planning.planner import emit_vllm
from corepipe.planning.planner.commands import measure_commands, serve_command, simulate_command
from corepipe.planning.planner.confidence import shipped_validation
from corepipe.planning.planner.emit_helm import PodSettings, helm_values
from corepipe.planning.planner.emit_vllm import vllm_manifests
from corepipe.planning.planner.plan_report import PlanCommands, document
from corepipe.planning.planner.planner import SPREAD, Plan, PlanRequest
from corepipe.planning.planner.planner import plan as make_plan
from corepipe.planning.planner.remedies import Remedy
from corepipe.planning.planner.remedies import remedy as find_remedy
from corepipe.planning.planner.search import INTERRUPTED as INTERRUPTED_BY_USER
from corepipe.planning.planner.search_result import PlanOption, SearchProgress, SearchStopped
from corepipe.planning.planner.space import DeploymentShape, SearchSpace
from corepipe.signals import INTERRUPTED

DEFAULT_PROFILE, NATIVE_PROFILE = "vllm-neuron", "vllm-neuron-native"
"""Software profiles of inf2 and trn1, and of what --emit vllm-neuron writes for trn2 and trn3."""

UNMET = 3
"""Exit code where nothing meets the objectives."""

UNDECIDED = 4
"""Exit code where several do, and --confidence tells none of them from another."""


def run(given: Given) -> None:
    """Plans with these flags and prints the result.  Raises UserError for what cannot be planned, Exit where
    nothing meets the objectives and where the user interrupted."""
    if given["buckets"]:
        from corepipe.cli.run.plans import buckets  # noqa: PLC0415 -- most plans do without

        buckets.run(given)
        return
    given.refuse(("graphs", "trace", "trace_format", "tensor", "max_num_seqs"), "needs --buckets")
    model = architecture(given["model"])
    if not model.graph(FORMATS["bf16"]).causal:
        _run_once(given, model)
        return
    emit, as_json = given["emit"], given["json"]
    if emit and as_json:
        raise UserError("--emit prints a file and --json a document: give one of them", "emit")
    if emit:
        given.refuse(("kernel",), "is not for --emit: what is deployed has no kernels from files")
    inquiry = _inquiry(given)
    if emit is options.Emit.VLLM_NEURON:
        _check_any_runs(inquiry)
    found, remedy = _searched(inquiry, given)
    commands = _commands(found, found.options[0], given) if found.options else None
    if as_json:
        print_json(document(found, remedy, commands))
    else:
        print_plan(errors() if emit else results(), found, remedy, None if emit else commands)
    if emit and found.best:
        typer.echo(_emitted(found, found.best, given), nl=False)
    if found.search.cut_short == INTERRUPTED_BY_USER:
        raise typer.Exit(INTERRUPTED)
    if found.best is None:
        raise typer.Exit(UNDECIDED if found.undecided else UNMET)


def _run_once(given: Given, model: Architecture) -> None:
    """Plans for a model that generates nothing."""
    from corepipe.cli.run.plans import once  # noqa: PLC0415 -- most models generate

    asked = configured(EngineConfig, {"model": given["model"], "max_model_len": given["max_model_len"]})
    graph = graph_of(asked, model, timed_task("auto", model))
    once.run(given, model, graph)


def _searched(inquiry: PlanRequest, given: Given) -> tuple[Plan, Remedy | None]:
    """The plan, and what would help where nothing was found and there is time."""
    with searching(given) as report:

        def watch(progress: SearchProgress) -> None:
            report(progress.what, 1 - progress.left / max(1, progress.shapes), note(progress))

        found = make_plan(inquiry, watch)
        if found.options or found.search.cut_short:
            return found, None
        try:
            return found, find_remedy(found, report)
        except (KeyboardInterrupt, SearchStopped):
            return found, None


def _commands(plan: Plan, best: PlanOption, given: Mapping[str, Any]) -> PlanCommands:
    model = given["model"]
    stack = _stack(best.deployment.candidate.shape.profile, _stacks(given))
    measure = _measure(plan, given) if given["next_measurement"] else None
    commands = PlanCommands(
        serve_command(model, best.deployment, stack, weights=_has_weights(model)),
        simulate_command(model, best.deployment, stack, plan.inquiry.demand),
        measure,
    )
    return replace(commands, **_real(plan, best, model))


def _real(plan: Plan, best: PlanOption, model: str) -> dict[str, Any]:
    """Returns fields of `PlanCommands`: what runs a replica on the hardware, or why no stack does."""
    longest, config = int(plan.inquiry.demand.sizes.prompts.max()), plan.inquiry.architecture.config
    candidate = best.deployment.candidate
    if candidate.shape.profile.kernels is not None:
        return {"vllm": "vLLM on Neuron takes no kernels from files: it would run its own"}
    if (refused := emit_vllm.refusal(candidate, config, longest)) is not None:
        return {"vllm": refused}
    source, doubts = _source(plan, best, model)
    return {
        "vllm": emit_vllm.command(source, best.deployment),
        "before": (*doubts, *emit_vllm.needed(source, best.deployment)),
        "doubt": emit_vllm.undocumented(candidate.shape, config),
    }


def _source(plan: Plan, best: PlanOption, model: str) -> tuple[str, list[str]]:
    """Returns the model that vLLM loads, and notes on it."""
    found, doubt = _repository(model)
    config = plan.inquiry.architecture.config
    source, more = emit_vllm.loaded(found, best.deployment.candidate.shape, config)
    return source, [*([doubt] if doubt else []), *more]


def _measure(plan: Plan, given: Mapping[str, Any]) -> tuple[list[str], ...] | str:
    """The measurement that would tell most options apart, or why there is none."""
    found = plan.certainty.next_measurement(plan.options)
    if found is None:
        return _no_measurement(plan)
    deployment = found.option.deployment
    if deployment.candidate.shape.placement.expert > 1:
        return f"corepipe fit reads no measurements of divided experts, as of {deployment.candidate}"
    stack = _stack(deployment.candidate.shape.profile, given["profile"] or [DEFAULT_PROFILE])
    return measure_commands(given["model"], deployment, stack, plan.inquiry.demand)


def _no_measurement(plan: Plan) -> str:
    if not plan.alike:
        return "there is nothing to tell apart: no other option's price may be the choice's"
    return (
        f"measuring any of the {1 + len(plan.alike)} options that cannot be told apart would tell it from no "
        "other: the intervals of the others are too wide"
    )


def _has_weights(model: str) -> bool:
    """Tells whether the model can be loaded and served itself."""
    return Path(model).is_dir() or Path(model).suffix == ".gguf"


def _inquiry(given: Given) -> PlanRequest:
    emit, max_error = given["emit"], given["max_error"]
    model = architecture(given["model"])
    guesses = assumed_drafts(given["speculative_config"], model)
    if guesses is not None and emit is options.Emit.VLLM_NEURON:
        raise UserError(
            "--speculative-config: vLLM on Neuron has no such drafts to --emit; leave out one of them",
            "speculative_config",
        )
    return PlanRequest(
        architecture=model,
        demand=asked_demand(given),
        space=replace(_space(given, model), speculative_config=guesses),
        market=asked_market(given),
        validation=shipped_validation(),
        max_model_len=given["max_model_len"],
        max_error=None if max_error is None else max_error / 100,
        accepts=_accepted(emit, model.config, own=not given["profile"]),
        **({"unfit": emit_vllm.unfit} if emit is options.Emit.VLLM_NEURON else {}),
        spread=1.0 if emit else SPREAD,
        confidence=given["confidence"],
    )


def _space(given: Given, model: Architecture) -> SearchSpace:
    """Returns the deployments that may be chosen; NxD Inference computes whole prompts, one at a time."""
    chosen, emit, kernels = asked_instances(given), given["emit"], asked_kernels(given, model)
    stacks = map(profiles.profile, dict.fromkeys(_stacks(given)))
    software = tuple(stack.with_kernels(kernels) for stack in stacks)
    space = SearchSpace(chosen, asked_formats(given), software, whole=any(one.chunk for one in software))
    native = any(map(emit_vllm.is_native, chosen))
    return replace(space, batched_tokens=()) if emit is options.Emit.VLLM_NEURON and not native else space


def _stacks(given: Mapping[str, Any]) -> list[str]:
    """Returns the software profiles of the plan: vLLM has another one for trn2 and trn3 than for inf2."""
    also = [NATIVE_PROFILE] if given["emit"] is options.Emit.VLLM_NEURON else []
    return given["profile"] or [DEFAULT_PROFILE, *also]


def _check_any_runs(inquiry: PlanRequest) -> None:
    """Raises UserError where vLLM on Neuron runs nothing of what may be chosen."""
    graph = inquiry.architecture.graph(FORMATS["bf16"])
    shapes = list(inquiry.space.shapes(graph.attention_heads, graph.num_layers, graph.experts))
    config = inquiry.architecture.config
    if shapes and not any(emit_vllm.runs(shape, config) for shape in shapes):
        emit_vllm.check_runs(shapes[0], config)


def _accepted(
    emit: options.Emit | None, model: ModelConfig, *, own: bool
) -> Callable[[DeploymentShape], bool]:
    """Returns which shapes can be emitted: `corepipe serve`, which the chart runs, has no flag for logical
    cores.

    own: the software was not named, so that each instance has the one that is written for it.
    """
    match emit:
        case options.Emit.VLLM_NEURON:
            return lambda shape: (
                emit_vllm.runs(shape, model)
                and (not own or (shape.profile.name == NATIVE_PROFILE) is emit_vllm.is_native(shape.device))
            )
        case options.Emit.HELM:
            return lambda shape: shape.lnc is None
        case _:
            return lambda _: True


def _emitted(plan: Plan, best: PlanOption, given: Mapping[str, Any]) -> str:
    model = given["model"]
    notes = [f"{plan.inquiry.architecture.name}: {sentence(plan, best)}", *doubts(plan, best)]
    if given["emit"] is options.Emit.VLLM_NEURON:
        source, more = _source(plan, best, model)
        config = plan.inquiry.architecture.config
        more += filter(None, [emit_vllm.undocumented(best.deployment.candidate.shape, config)])
        return vllm_manifests(source, best.deployment, config, [*notes, *more])
    stack = _stack(best.deployment.candidate.shape.profile, _stacks(given))
    return helm_values(
        PodSettings(model, _has_weights(model), stack, best.outcome.latency), best.deployment, notes
    )


def _repository(model: str) -> tuple[str, str | None]:
    """Returns what vLLM loads: a directory by its whole path, or a repository as it was given; for a
    published name its repository.  And what is to be put right by hand (None: nothing)."""
    path = Path(model)
    if path.is_dir():
        return str(path.absolute()), None
    if path.exists():
        return model, f"vLLM loads directories: put the one with the weights of {model} in its place"
    name = published.resolve(model)
    known = published.hub_id(name)
    if "/" in model:
        return model, None
    if known is None:
        return model, f"put the model's directory or repository in the place of {model}"
    if published.plain(model) != name:
        return known, f"{known} is of the shape of {model}: put another repository of it in its place"
    return known, None


def _stack(profile: RuntimeProfile, stacks: Sequence[str]) -> str:
    """Returns a profile as the user named it: by a name, or by the path of a file."""
    plain = profile.with_kernels(None)
    return next(stack for stack in stacks if profiles.profile(stack) == plain)
