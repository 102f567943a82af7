"""The work of `corepipe monitor`: prints what happened in each period, in neuron-monitor's words.

The schema is that of tools/neuron-sys-tools/neuron-monitor-user-guide.rst in the Neuron SDK's documentation,
with `"emulated": true` besides.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import typer

from corepipe.cli.output.common import errors, seconds, until_interrupted
from corepipe.cli.run.reading import (
    CoreUse,
    MetricsDelta,
    MetricsSample,
    MonitoredServer,
    ServedDeployment,
    UnreachableError,
)
from corepipe.neuron.chips.hardware import hypothetical
from corepipe.serving.telemetry.neuron_metrics import ECC_EVENTS, ERRORS, STATUSES

Json = dict[str, Any]

_PERCENTILES = ("p0", "p1", "p25", "p50", "p75", "p99", "p100")
_DEVICE_VERSIONS = {
    "Inferentia": "v1",
    "Trainium": "v2",
    "Inferentia2": "v3",
    "Trainium2": "v4",
    "Trainium3": "v5",
}
"""The guide's example has Trainium2's; the others are in the order in which they came."""

_FIRST_MODEL = 10_001
"""Number of the first core's model, in the range that neuron-monitor shows."""


def run(given: Mapping[str, Any]) -> None:
    """Prints lines until it is interrupted.  Raises UserError where no server answers at the start."""
    wait = seconds("--period", given["period"]) or 0.0
    server = MonitoredServer(given["url"], given["api_key"])
    with contextlib.closing(server), until_interrupted():
        deployments = server.deployments()
        before = _read(server, there=True)
        while True:
            time.sleep(wait)
            after = _read(server, there=before is not None)
            if after is None:
                typer.echo(json.dumps(_document(deployments[0], [], None)))
            elif before is not None:
                told = [MetricsDelta(before, after, one) for one in deployments]
                typer.echo(json.dumps(document(told)))
            before = after


def _read(server: MonitoredServer, *, there: bool) -> MetricsSample | None:
    """A reading; None where the server does not answer, which is said once (where it was `there`)."""
    try:
        return server.read()
    except UnreachableError as error:
        if there:
            errors().print(f"corepipe: {server.url}: {error}")
        return None


def document(told: Sequence[MetricsDelta]) -> Json:
    """One line: what happened between two readings, a runtime for each of the server's models."""
    runtimes = [_runtime(one, one.deployment) for one in told]
    return _document(told[0].deployment, runtimes, _system(told[0], told[0].deployment))


def _document(deployment: ServedDeployment, runtimes: list[Json], system: Json | None) -> Json:
    instance = deployment.instance
    version = instance.chip.core.version
    return {
        "emulated": True,
        **hypothetical(instance),
        "neuron_runtime_data": runtimes,
        "system_data": system,
        "instance_info": {
            "instance_name": "corepipe",
            "instance_id": "emulated",
            "instance_type": instance.name,
            "instance_availability_zone": "",
            "instance_availability_zone_id": "",
            "instance_region": "",
            "ami_id": "",
            "subnet_id": "",
            "error": "",
        },
        "neuron_hardware_info": {
            "neuron_device_type": instance.chip.name.lower(),
            "neuron_device_version": _DEVICE_VERSIONS[instance.chip.name],
            "neuroncore_version": f"{version}d" if instance.lnc == 2 else version,
            "neuron_device_count": instance.chips,
            "neuron_device_memory_size": instance.chip.memory_bytes,
            "neuroncore_per_device_count": instance.cores_per_chip,
            "logical_neuroncore_config": instance.lnc,
            "error": "",
        },
    }


def _runtime(between: MetricsDelta, deployment: ServedDeployment) -> Json:
    return {
        "pid": 0,
        "address": "",
        "neuron_runtime_tag": deployment.name or deployment.model,
        "error": "",
        "report": {
            "neuroncore_counters": _group(between, neuroncores_in_use=_cores(between, deployment)),
            "execution_stats": _executions(between),
            "memory_used": _memory(between, deployment),
            "neuron_runtime_vcpu_usage": _group(
                between, vcpu_usage=_percentages(between, "neuron_runtime_vcpu_usage_ratio")
            ),
        },
    }


def _group(between: MetricsDelta, **fields: object) -> Json:
    """A group of metrics as all are: with the time that it is of."""
    return {"period": round(between.seconds, 3), **fields, "error": ""}


def _cores(between: MetricsDelta, deployment: ServedDeployment) -> Json:
    return {str(core.core): _core(core, deployment) for core in between.cores}


def _core(core: CoreUse, deployment: ServedDeployment) -> Json:
    """Utilization in percent, FLOPs a second.  The physical cores of a logical one work alike."""
    busy = round(100 * core.busy, 2)
    found: Json = {"neuroncore_utilization": busy, "flops": round(core.flops)}
    if deployment.instance.lnc == 2:
        found["v3d"] = {
            f"nc_v3.{2 * core.core + part}": {"neuroncore_utilization": busy} for part in range(2)
        }
    return found


def _executions(between: MetricsDelta) -> Json:
    """An emulated device fails no execution."""
    completed = round(between.count("corepipe_steps_total"))
    return _group(
        between,
        error_summary=dict.fromkeys(ERRORS, 0),
        execution_summary={**dict.fromkeys(STATUSES, 0), "completed": completed},
        latency_stats={
            "total_latency": _latencies(between, "execution_latency_seconds"),
            "device_latency": _latencies(between, "corepipe_execution_device_latency_seconds"),
        },
    )


def _latencies(between: MetricsDelta, name: str) -> Mapping[str, float] | None:
    """In seconds; None where nothing ran."""
    found = between.after.by(name, "percentile")
    return {percentile: found[percentile] for percentile in _PERCENTILES} if found else None


def _memory(between: MetricsDelta, deployment: ServedDeployment) -> Json:
    used = between.after.by("neuron_runtime_memory_used_bytes", "memory_location")
    host = round(used.get("host", 0))
    on_cores = {str(core.core): _core_memory(core) for core in between.cores}
    return _group(
        between,
        neuron_runtime_used_bytes={
            "host": host,
            "neuron_device": round(used.get("neuron_device", 0)),
            "usage_breakdown": {
                "host": {"application_memory": host, "constants": 0, "dma_buffers": 0, "tensors": 0},
                "neuroncore_memory_usage": on_cores,
            },
        },
        loaded_models=[_model(core, deployment) for core in between.cores],
    )


def _core_memory(core: CoreUse) -> Json:
    """Weights are constants, the KV cache is tensors; code and the runtime's own memory are not modelled."""
    return {
        "constants": core.memory["weights"],
        "model_code": 0,
        "model_shared_scratchpad": core.memory["buffers"],
        "runtime_memory": 0,
        "tensors": core.memory["kv_cache"],
    }


def _model(core: CoreUse, deployment: ServedDeployment) -> Json:
    parts = _core_memory(core)
    usage = {name: parts[name] for name in ("constants", "model_code", "runtime_memory", "tensors")}
    name = f"{deployment.timed}/{core.core}"
    return {
        "name": deployment.timed,
        "uuid": uuid5(NAMESPACE_URL, f"corepipe:{name}").hex,
        "model_id": _FIRST_MODEL + core.core,
        "is_running": core.busy > 0,
        "subgraphs": {
            "sg_00": {
                "memory_used_bytes": {
                    "host": 0,
                    "neuron_device": sum(parts.values()),
                    "usage_breakdown": {"host": {}, "neuron_device": usage},
                },
                "neuroncore_index": core.core % deployment.instance.cores_per_chip,
                "neuron_device_index": deployment.instance.chip_of(core.core),
            }
        },
    }


def _system(between: MetricsDelta, deployment: ServedDeployment) -> Json:
    """Returns the figures of the host.  The server reports the mean of its vCPUs, which is given for each
    here."""
    after, used = between.after, _percentages(between, "system_vcpu_usage_ratio")
    usage = {
        "user": used["user"],
        "nice": 0,
        "system": used["system"],
        "idle": round(max(0.0, 100 - used["user"] - used["system"]), 2),
        "io_wait": 0,
        "irq": 0,
        "soft_irq": 0,
    }
    sizes = ("memory_total_bytes", "memory_used_bytes", "swap_total_bytes", "swap_used_bytes")
    devices = range(deployment.instance.chips)
    return {
        "neuron_hw_counters": _group(
            between,
            neuron_devices=[{"neuron_device_index": i, **dict.fromkeys(ECC_EVENTS, 0)} for i in devices],
        ),
        "vcpu_usage": _group(
            between,
            average_usage=usage,
            usage_data={str(cpu): usage for cpu in range(round(after.total("system_vcpu_count")))},
            context_switch_count=0,
        ),
        "memory_info": _group(between, **{size: round(after.total(f"system_{size}")) for size in sizes}),
    }


def _percentages(between: MetricsDelta, name: str) -> dict[str, float]:
    found = between.after.by(name, "usage_type")
    return {kind: round(100 * found.get(kind, 0.0), 2) for kind in ("user", "system")}
