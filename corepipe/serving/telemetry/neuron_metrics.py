"""Metrics of the emulated device under neuron-monitor's names, so that its dashboards work unchanged.

Names and labels are those of neuron-monitor-prometheus.py, which comes with the Neuron SDK; every series has
`emulated="true"` besides.  Figures of the device are predicted; `system_*` and the runtime's host memory and
vCPU usage are those of this machine.  Gauges are over the last WINDOW_SECONDS.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Ready
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.serving.telemetry.host_usage import HostUsage
from corepipe.serving.telemetry.observer import WINDOW_SECONDS, Observer

PERCENTILES = (0, 1, 25, 50, 75, 99, 100)
ERRORS = ("generic", "numerical", "transient", "model", "runtime", "hardware")
STATUSES = (
    "completed",
    "completed_with_err",
    "completed_with_num_err",
    "timed_out",
    "incorrect_input",
    "failed_to_queue",
)
ECC_EVENTS = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
CORE_MEMORY = {
    "constants": "weights",
    "model_code": None,
    "model_shared_scratchpad": "buffers",
    "runtime_memory": None,
    "tensors": "kv_cache",
}
"""neuron-monitor's kinds of device memory -> parts of the placement's `memory_bytes`; None: not modelled."""


class NeuronMetrics(Collector):
    """All metrics of a model at `/metrics/neuron`."""

    def __init__(self, model: str, config: EngineConfig, observer: Observer) -> None:
        instance = find_instance(config.instance)
        self._instance = instance if config.lnc is None else instance.with_lnc(config.lnc)
        self._first_core = config.first_core
        self._paced = config.clock == "device"
        self._time_scale = config.time_scale
        self._observer = observer
        self._now = observer.now
        self._usage = HostUsage(self._now())
        self._cores: list[Mapping[str, int]] = []
        self._labels = {
            "instance_name": "corepipe",
            "instance_id": f"emulated-{socket.gethostname()}",
            "instance_type": self._instance.name,
            "availability_zone": "",
            "region": "",
            "subnet_id": "",
            "emulated": "true",
        }
        self._runtime = {**self._labels, "runtime_tag": model}

    def set_ready(self, ready: Ready) -> None:
        """Notes that the engine has loaded, to export the memory of its cores and the use of its process."""
        self._cores = [core["memory_bytes"] for core in ready.placement.get("cores", [])]
        self._usage.watch(ready.pid, self._now())

    def rest(self) -> None:
        """Notes that the engine has ended: nothing is in the device's memory."""
        self._cores = []

    def collect(self) -> Iterator[Metric]:
        """Yields all families; called by the registry."""
        yield self._utilization()
        yield from self._memory()
        yield from self._executions()
        yield from self._host()
        yield from self._hardware()

    def _utilization(self) -> Metric:
        family = self._gauge("neuroncore_utilization_ratio", "Busy share of a NeuronCore.", "neuroncore")
        for replica in sorted(self._observer.latest):
            busy = self._busy(replica)
            for core, share in enumerate(busy):
                family.add_metric(
                    (*self._runtime.values(), str(self._first_core + replica * len(busy) + core)), share
                )
        return family

    def _busy(self, replica: int) -> list[float]:
        """Returns the busy share of each core of a replica.

        It is the share of the time that passed where the device sets the pace, else of the emulated time,
        which passes only while there is work.
        """
        change = self._observer.histories[replica].change(self._now())
        if change is None:
            return [0.0] * len(self._observer.latest[replica].core_busy_seconds)
        before, after = change.before, change.after
        passed = change.passed / self._time_scale
        if not self._paced:
            passed = after.device_now_seconds - before.device_now_seconds
        spent = zip(before.core_busy_seconds, after.core_busy_seconds, strict=True)
        return [min(1.0, (end - begin) / passed) if passed > 0 else 0.0 for begin, end in spent]

    def _memory(self) -> Iterator[Metric]:
        used = self._gauge(
            "neuron_runtime_memory_used_bytes", "Memory of the runtime by where it is.", "memory_location"
        )
        device = len(self._observer.latest) * sum(sum(core.values()) for core in self._cores)
        used.add_metric((*self._runtime.values(), "host"), self._usage.engine_bytes)
        used.add_metric((*self._runtime.values(), "neuron_device"), device)
        yield used
        for kind, part in CORE_MEMORY.items():
            family = self._gauge(
                f"neuroncore_memory_usage_{kind}",
                f"Device memory of a NeuronCore: {kind.replace('_', ' ')}.",
                "neuroncore",
                "memory_location",
            )
            for number, core in enumerate(self._cores * len(self._observer.latest), self._first_core):
                labels = (*self._runtime.values(), str(number), "neuron_device")
                family.add_metric(labels, core[part] if part else 0)
            yield family

    def _executions(self) -> Iterator[Metric]:
        yield self._counter("execution_errors", "Executions that failed.", "error_type", ERRORS, {})
        done = {"completed": sum(stats.steps for stats in self._observer.latest.values())}
        yield self._counter("execution_status", "Executions by outcome.", "status_type", STATUSES, done)
        since = self._now() - WINDOW_SECONDS
        recent = [(on_device, in_all) for at, on_device, in_all in self._observer.steps if at > since]
        what = "Latencies of the executions of the last seconds, from the scheduler to the tokens."
        yield self._latency("execution_latency_seconds", what, sorted(in_all for _, in_all in recent))
        name, what = (
            "corepipe_execution_device_latency_seconds",
            "Latencies of them on the device.",
        )
        yield self._latency(name, what, sorted(on_device for on_device, _ in recent))

    def _latency(self, name: str, what: str, seconds: Sequence[float]) -> Metric:
        family = self._gauge(name, what, "percentile")
        for percentile in PERCENTILES if seconds else ():
            value = seconds[round(percentile / 100 * (len(seconds) - 1))]
            family.add_metric((*self._runtime.values(), f"p{percentile}"), value)
        return family

    def _host(self) -> Iterator[Metric]:
        usage = self._usage.read(self._now())
        name, what = (
            "neuron_runtime_vcpu_usage_ratio",
            "Share of the host's vCPUs that the engine's process uses.",
        )
        family = self._gauge(name, what, "usage_type")
        for kind, share in usage.engine.items():
            family.add_metric((*self._runtime.values(), kind), share)
        yield family
        family = self._system("system_vcpu_usage_ratio", "Share of the host's vCPUs in use.", "usage_type")
        for kind, share in usage.system.items():
            family.add_metric((*self._labels.values(), kind), share)
        yield family
        for name, what, value in (
            ("system_vcpu_count", "vCPUs of the host.", usage.vcpus),
            ("system_memory_total_bytes", "Memory of the host.", usage.memory_total),
            ("system_memory_used_bytes", "Memory of the host in use.", usage.memory_used),
            ("system_swap_total_bytes", "Swap of the host.", usage.swap_total),
            ("system_swap_used_bytes", "Swap of the host in use.", usage.swap_used),
        ):
            family = self._system(name, what)
            family.add_metric(tuple(self._labels.values()), value)
            yield family

    def _hardware(self) -> Iterator[Metric]:
        names = (*self._labels, "event_type", "neuron_device_index")
        ecc = CounterMetricFamily(
            "hardware_ecc_events", "Errors of memories: emulated ones have none.", labels=names
        )
        for device in range(self._instance.chips):
            for event in ECC_EVENTS:
                ecc.add_metric((*self._labels.values(), event, str(device)), 0)
        yield ecc
        family = self._system("instance_info", "The emulated instance.")
        family.add_metric(tuple(self._labels.values()), 1)
        yield family
        hardware = {
            "neuron_device_count": str(self._instance.chips),
            "neuroncore_per_device_count": str(self._instance.cores_per_chip),
        }
        family = self._system("neuron_hardware_info", "The devices of the emulated instance.", *hardware)
        family.add_metric((*self._labels.values(), *hardware.values()), 1)
        yield family

    def _gauge(self, name: str, what: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, what, labels=(*self._runtime, *more))

    def _system(self, name: str, what: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, what, labels=(*self._labels, *more))

    def _counter(
        self, name: str, what: str, label: str, kinds: tuple[str, ...], counts: Mapping[str, int]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(name, what, labels=(*self._runtime, label))
        for kind in kinds:
            family.add_metric((*self._runtime.values(), kind), counts.get(kind, 0))
        return family
