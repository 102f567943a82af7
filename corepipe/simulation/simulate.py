"""A workload through a deployment in virtual time: the scheduler, policy, router and device timelines that
serve HTTP, with nothing computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.engine.assembly.device_plan import DevicePlan, batch_policy, plan_device, scheduler_config
from corepipe.engine.config import EngineConfig
from corepipe.engine.drafters.speculation import synthetic_drafters
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.step import AdapterKind
from corepipe.simulation.early_stop import EarlyStop
from corepipe.simulation.native_fleet import NativeSimulation, has_native_replicas
from corepipe.simulation.plain_run import LoopedSimulation
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.report import SimulationReport
from corepipe.simulation.scenario import Progress, Scenario, silent
from corepipe.workload.slo import NO_SLO, Slo
from corepipe.workload.workload import Workload

NO_TEXTS = (
    "--speculative-config: a simulation has no texts to draft from; give the rates of accepted drafts: "
    '"rejection_sample_method": "synthetic" with synthetic_acceptance_rates'
)


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """A deployment, as `corepipe serve` takes it, and what is asked of it.

    Of `engine` its clock, time scale, threads, cache directory and host memory do not matter; `model` is
    what `registry.architecture` takes.
    """

    engine: EngineConfig
    slo: Slo = NO_SLO


def simulate(
    config: SimulationConfig,
    workload: Workload,
    progress: Progress | None = None,
    device: DevicePlan | None = None,
) -> SimulationReport:
    """Runs the workload to its end and returns the report of it.

    device: the placed model, where the caller has it (`device_plan.plan_device(config.engine, ...)`); it
    can be used for any number of workloads.  The same arguments give the same report, byte for byte.
    Raises UserError for what cannot be deployed, and for what is wrong in the workload.
    """
    device = device or plan_device(_virtual(config.engine), registry.architecture(config.engine.model))
    record = play(config, workload, device, progress)
    return SimulationReport.of(record, device, config.slo, workload, config.engine.speculative_config)


def play(
    config: SimulationConfig,
    workload: Workload,
    device: DevicePlan,
    progress: Progress | None = None,
    early_stop: EarlyStop | None = None,
) -> SimulationRecord:
    """Runs the workload to its end, or until it is lost; returns the record."""
    engine = _virtual(config.engine)
    _check_speculation(engine)
    most, blocks = device.graph.max_positions, device.memory.num_blocks
    limits = scheduler_config(engine, device, blocks, most, max_cached_blocks=None)
    if not workload.shares_prefixes:  # nothing would be found: the same times, without looking
        limits = replace(limits, prefix_cache=False)
    scenario = Scenario(
        limits,
        batch_policy(engine, device),
        device.timelines(),
        workload,
        early_stop,
        encoding=device.encoding,
        max_batch_delay=engine.max_batch_delay,
        drafters=synthetic_drafters(engine.speculative_config, engine.seed),
        kinds=dict.fromkeys(range(engine.lora_slots), AdapterKind(engine.max_lora_rank)),
    )
    return run(scenario, progress or silent)


def _check_speculation(engine: EngineConfig) -> None:
    """Raises UserError where drafts would need texts, of which a simulation has none."""
    speculation = engine.speculative_config
    if speculation is not None and speculation.synthetic_rates is None:
        raise UserError(NO_TEXTS, "speculative_config")


def _virtual(engine: EngineConfig) -> EngineConfig:
    return engine.model_copy(update={"clock": "virtual", "time_scale": 1.0})


def run(scenario: Scenario, progress: Progress = silent) -> SimulationRecord:
    """Plays all arrivals and runs until the last request has ended, or the run is lost: over native replicas
    where there are any, else in the loop that serves; the result is the same."""
    simulation = NativeSimulation if has_native_replicas(scenario) else LoopedSimulation
    return simulation(scenario).run(progress)
