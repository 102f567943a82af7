"""The picture that `corepipe top` shows: requests, tokens, cores and their engines, memory, host, cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from types import MappingProxyType
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from corepipe.cli.output.tables import Figures, facts
from corepipe.cli.run.reading import CoreUse, MetricsDelta, ServedDeployment
from corepipe.neuron.chips.hardware import ENGINES, dollars_per_million_tokens

LEVELS = "·▁▂▃▄▅▆▇█"
BAR = 10
"""Characters of a bar."""

MARGINS: Mapping[str, Any] = MappingProxyType({"pad_edge": False, "padding": (0, 1, 0, 0)})
"""The margins of tables: beside their columns, not around them."""

WARM, HOT = 0.5, 0.9
"""Shares from which a bar is yellow and red."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the last seconds of a server; `between` is None until the second measurement.

    `height`: lines of the terminal, where it has an end; `problem`: why the latest reading is missing.
    """

    url: str
    deployment: ServedDeployment
    between: MetricsDelta | None
    height: int | None
    problem: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heading = [self._title(), *([Text(f"no answer: {self.problem}", "bold red")] if self.problem else [])]
        if self.between is None:
            yield Group(*heading, Text("waiting for the second measurement ...", "dim"))
            return
        requests = facts(self._requests(self.between), "bold", **MARGINS)
        above = Group(*heading, Text(), requests, Text(), self._cores_title())
        rest = facts(self._rest(self.between), "bold", **MARGINS)
        below = Group(*self._unused(self.between), Text(), rest)
        yield above
        yield from self._cores(self.between, console, options, _lines(console, options, Group(above, below)))
        yield below

    def _title(self) -> Text:
        deployment, title = self.deployment, Text()
        device = deployment.instance
        title.append("corepipe top  ", "bold").append(f"{self.url}  ")
        title.append("" if deployment.name is None else f"{deployment.name}: ", "bold cyan")
        title.append(f"{deployment.timed}, {deployment.format}, on {device.name} ({device.standing})", "cyan")
        if deployment.timed != deployment.model:
            title.append(f"; tokens are {deployment.model}'s")
        if self.between is not None:
            title.append(f"  up {_duration(_up(self.between))}", "dim")
        return title

    def _requests(self, between: MetricsDelta) -> Iterator[tuple[str, str]]:
        after = between.after
        ended = between.rate("vllm:request_success_total")
        yield (
            "requests",
            f"{after.total('vllm:num_requests_running'):.0f} running, "
            f"{after.total('vllm:num_requests_waiting'):.0f} waiting; {ended:.1f} ended a second",
        )
        hits = between.ratio("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
        yield (
            "tokens/s",
            f"{between.rate('vllm:generation_tokens_total'):.1f} out, "
            f"{between.rate('vllm:prompt_tokens_total'):.1f} in"
            + ("" if hits is None else f"; {hits:.0%} of prompts from the prefix cache"),
        )
        for title, name in (("first token", "time_to_first_token"), ("a token", "time_per_output_token")):
            host = f"vllm:{'request_' if 'per_output' in name else ''}{name}_seconds"
            yield title, _latencies(between, host, f"corepipe_device_{name}_seconds")
        blocks = after.total("corepipe_kv_blocks")
        held, cached = (after.total(f"corepipe_kv_blocks_{kind}") for kind in ("held", "cached"))
        share = held / blocks if blocks else 0.0
        yield (
            "KV cache",
            f"{_bar(share)} {share:.0%} in use, {cached / blocks if blocks else 0:.0%} cached prefixes",
        )

    def _cores_title(self) -> Text:
        passed = "time" if self.deployment.paced else "emulated time with work in it"
        core = self.deployment.instance.chip.core.version
        return Text(f"NeuronCores {core}, busy share of the {passed}", "bold")

    def _unused(self, between: MetricsDelta) -> Iterator[Text]:
        count = self.deployment.instance.cores * between.instances
        if idle := count - len(between.cores):
            whose = "deployment" if self.deployment.name is None else "model"
            yield Text(f"{idle} of {count} cores are not used by this {whose}", "dim")

    def _cores(
        self, between: MetricsDelta, console: Console, options: ConsoleOptions, beside: int
    ) -> Iterator[RenderableType]:
        """A line a core, or where the terminal is too small for that a line a device."""
        cores = between.cores
        told = _core_table(cores)
        if told.width_of_all > options.max_width:
            told = facts(map(_core_facts, cores), "dim", **MARGINS)
        room = inf if self.height is None else max(1, self.height - beside)
        if _lines(console, options, told) <= room:
            yield told
        else:
            per_device = self.deployment.instance.cores_per_chip
            yield from _devices(cores, per_device, int(room), options.max_width)

    def _rest(self, between: MetricsDelta) -> Iterator[tuple[str, str]]:
        parts: Counter[str] = Counter()
        for core in between.cores:
            parts.update(core.memory)
        held = ", ".join(f"{name.replace('_', ' ')} {_size(size)}" for name, size in parts.items())
        chips = {self.deployment.instance.chip_of(core.core) for core in between.cores}
        whole = len(chips) * self.deployment.instance.chip.memory_bytes
        yield "device", f"{_size(sum(parts.values()))} of {_size(whole)}: {held}"
        if between.hosts:
            yield "hosts", _hosts(between.hosts)
        yield "host", _host(between)
        yield "pace", self._pace(between)
        yield "cost", _cost(between)

    def _pace(self, between: MetricsDelta) -> str:
        device = between.count("corepipe_device_busy_seconds_total")
        host = between.count("corepipe_host_busy_seconds_total")
        if not self.deployment.paced:
            took = f"{host / device:.1f} s of the host for one of the device" if device else "no work"
            return f"as fast as the host can; {took}"
        steps, late = between.count("corepipe_steps_total"), between.count("corepipe_late_steps_total")
        told = f"{late:.0f} of {steps:.0f} steps late"
        if not any(value == 0 for _, value in between.after.values("corepipe_device_times_valid")):
            return f"the device's, times {self.deployment.time_scale:g}; {told}"
        needed = between.after.total("corepipe_time_scale_needed")
        return f"{told}: not valid; --time-scale {needed:g} would do"


def _latencies(between: MetricsDelta, host: str, device: str) -> str:
    """Returns medians and 99th percentiles: as clients saw them, and as the device would have taken."""
    seen = [
        f"{where} p50 {_time(p50)}, p99 {_time(between.quantile(name, 0.99))}"
        for where, name in (("seen", host), ("emulated", device))
        if (p50 := between.quantile(name, 0.5)) is not None
    ]
    return "; ".join(seen) or "none in the last seconds"


def _lines(console: Console, options: ConsoleOptions, part: RenderableType) -> int:
    """Returns how many lines a part of the picture takes."""
    return len(console.render_lines(part, options.update(height=None)))


def _core_table(cores: Sequence[CoreUse]) -> Figures:
    engines = (f">{engine[:6]}" for engine in ENGINES)
    heads = (">core", ">busy", *engines, ">TFLOPS", ">GB/s", ">memory")
    table = Figures(*heads, header_style="dim", **MARGINS)
    for core in cores:
        table.add_row(
            str(core.core),
            Text(f"{_bar(core.busy)} {core.busy:4.0%}", _colour(core.busy)),
            *(f"{core.engines[engine]:.0%}" for engine in ENGINES),
            f"{core.flops / 1e12:.2f}",
            f"{core.memory_traffic / 1e9:.0f}",
            _size(sum(core.memory.values())),
        )
    return table


def _core_facts(core: CoreUse) -> tuple[str, str]:
    """Returns the cells of a core as a label and a text, for a terminal in which the columns do not fit."""
    engines = ", ".join(f"{engine} {core.engines[engine]:.0%}" for engine in ENGINES)
    return (
        f"core {core.core}",
        f"{core.busy:.0%} busy; {engines}; {core.flops / 1e12:.2f} TFLOPS, "
        f"{core.memory_traffic / 1e9:.0f} GB/s, {_size(sum(core.memory.values()))}",
    )


def _devices(cores: Sequence[CoreUse], per_device: int, room: int, width: int) -> Iterator[Text]:
    """A character a core, in as many columns as it takes and fit."""
    groups = [[*group] for _, group in groupby(cores, lambda core: core.core // per_device)]
    first = cores[0].core // per_device
    fit = max(1, width // max(len(_device(first, group)) for group in groups))
    columns = min(fit, -(-len(groups) // room))
    for at in range(0, len(groups), columns):
        line = enumerate(groups[at : at + columns], first + at)
        yield Text().join(_device(number, group) for number, group in line)


def _device(number: int, cores: Sequence[CoreUse]) -> Text:
    mean = sum(core.busy for core in cores) / len(cores)
    levels = ((_level(core.busy), _colour(core.busy)) for core in cores)
    return Text.assemble((f"device {number:>3} ", "dim"), *levels, f" {mean:4.0%}   ")


def _hosts(serving: Mapping[str, bool]) -> str:
    """Returns how many machines of a fleet serve, and which do not."""
    others = ", ".join(name for name, serves in serving.items() if not serves)
    told = f"{sum(serving.values())} of {len(serving)} machines serve"
    return f"{told}; {others} not" if others else told


def _host(between: MetricsDelta) -> str:
    system = between.after.by("system_vcpu_usage_ratio", "usage_type")
    engine = between.after.by("neuron_runtime_vcpu_usage_ratio", "usage_type")
    memory = between.after.total("neuron_runtime_memory_used_bytes", memory_location="host")
    count = between.after.total("system_vcpu_count")
    return (
        f"{sum(system.values()):.0%} of {count:.0f} vCPUs in use, {sum(engine.values()):.0%} by the engine; "
        f"it holds {_size(memory)}"
    )


def _cost(between: MetricsDelta) -> str:
    """Returns the cost of the last seconds' tokens, at the device's pace and the instance's list price."""
    price = between.after.total("corepipe_device_dollars_per_hour") * between.instances
    if not price:
        return "no list price"
    told, passed = f"${price:.3f} an hour (list price)", between.emulated_seconds
    tokens = between.count("vllm:generation_tokens_total")
    if not tokens or not passed:
        return told
    each = dollars_per_million_tokens(price, tokens / passed)
    return f"{told}, ${each:.2f} a million output tokens at the device's pace"


def _up(between: MetricsDelta) -> float:
    started = between.after.total("process_start_time_seconds")
    return time.time() - started if started else 0.0


def _bar(share: float) -> str:
    """BAR characters, filled to an eighth of one."""
    eighths = round(min(1.0, max(0.0, share)) * BAR * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(BAR, "·")


def _level(share: float) -> str:
    return LEVELS[round(min(1.0, max(0.0, share)) * (len(LEVELS) - 1))]


def _colour(share: float) -> str:
    return "red" if share >= HOT else "yellow" if share >= WARM else "green"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
