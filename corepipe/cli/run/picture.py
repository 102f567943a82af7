"""The picture that `corepipe top` shows: requests, tokens, cores and their engines, memory, host, cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from corepipe.cli.run.reading import Between, CoreUse, Deployment
from corepipe.neuron.cost import dollars_per_million_tokens
from corepipe.neuron.tables import ENGINES

LEVELS = "·▁▂▃▄▅▆▇█"
BAR = 10
"""Characters of a bar."""

FRAME_LINES = 15
"""Lines around the table of cores."""

WARM, HOT = 0.5, 0.9
"""Shares from which a bar is yellow and red."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Of what happened in the last seconds; None where there is no second reading yet.

    `height`: lines of the terminal, where it has an end; `problem`: why the latest reading is missing.
    """

    url: str
    deployment: Deployment
    between: Between | None
    height: int | None
    problem: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._title()
        if self.problem:
            yield Text(f"no answer: {self.problem}", "bold red")
        if self.between is None:
            yield Text("waiting for a second reading ...", "dim")
            return
        yield Text()
        yield _rows(self._requests(self.between))
        yield Text()
        yield from self._cores(self.between)
        yield Text()
        yield _rows(self._rest(self.between))

    def _title(self) -> Text:
        deployment, title = self.deployment, Text(no_wrap=True, overflow="ellipsis")
        title.append("corepipe top  ", "bold").append(f"{self.url}  ")
        title.append(
            f"{deployment.timed}, {deployment.format}, on {deployment.instance.name} (emulated)", "cyan"
        )
        if deployment.timed != deployment.model:
            title.append(f"; tokens are {deployment.model}'s")
        if self.between is not None:
            title.append(f"  up {_duration(_up(self.between))}", "dim")
        return title

    def _requests(self, between: Between) -> Iterator[tuple[str, str]]:
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
            f"{_bar(share)} {share:.0%} held, {cached / blocks if blocks else 0:.0%} kept for prefixes",
        )

    def _cores(self, between: Between) -> Iterator[RenderableType]:
        """A line a core, or where the terminal is too low for that a line a device."""
        cores, instance = between.cores, self.deployment.instance
        passed = "time" if self.deployment.paced else "emulated time with work in it"
        yield Text(f"NeuronCores {instance.chip.core.version}, busy share of the {passed}", "bold")
        room = None if self.height is None else max(1, self.height - FRAME_LINES - bool(self.problem))
        if room is None or len(cores) <= room:
            yield _core_table(cores)
        else:
            yield from _devices(cores, instance.cores_per_chip, room)
        if idle := instance.cores - len(cores):
            yield Text(f"{idle} of {instance.cores} cores are not used by this deployment", "dim")

    def _rest(self, between: Between) -> Iterator[tuple[str, str]]:
        parts: Counter[str] = Counter()
        for core in between.cores:
            parts.update(core.memory)
        held = ", ".join(f"{name.replace('_', ' ')} {_size(size)}" for name, size in parts.items())
        chips = {self.deployment.instance.chip_of(core.core) for core in between.cores}
        whole = len(chips) * self.deployment.instance.chip.memory_bytes
        yield "device", f"{_size(sum(parts.values()))} of {_size(whole)}: {held}"
        yield "host", _host(between)
        yield "pace", self._pace(between)
        yield "cost", _cost(between)

    def _pace(self, between: Between) -> str:
        device = between.count("corepipe_device_busy_seconds_total")
        host = between.count("corepipe_host_busy_seconds_total")
        if not self.deployment.paced:
            took = f"{host / device:.1f} s of the host for one of the device" if device else "no work"
            return f"as fast as the host can; {took}"
        steps, late = between.count("corepipe_steps_total"), between.count("corepipe_late_steps_total")
        return f"the device's, times {self.deployment.time_scale:g}; {late:.0f} of {steps:.0f} steps late"


def _rows(rows: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=11)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for title, text in rows:
        table.add_row(title, Text(text))
    return table


def _latencies(between: Between, host: str, device: str) -> str:
    """Medians and 99th percentiles: as clients saw it, and as the device would have taken."""
    seen = [
        f"{where} p50 {_time(p50)}, p99 {_time(between.quantile(name, 0.99))}"
        for where, name in (("seen", host), ("emulated", device))
        if (p50 := between.quantile(name, 0.5)) is not None
    ]
    return "; ".join(seen) or "none in the last seconds"


def _core_table(cores: Sequence[CoreUse]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("core", justify="right")
    table.add_column("busy", no_wrap=True)
    for engine in ENGINES:
        table.add_column(engine[:6], justify="right", no_wrap=True)
    for title in ("TFLOPS", "GB/s", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
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


def _devices(cores: Sequence[CoreUse], per_device: int, room: int) -> Iterator[Text]:
    """A character a core, in as many columns as it takes."""
    groups = [cores[at : at + per_device] for at in range(0, len(cores), per_device)]
    columns = -(-len(groups) // room)
    for at in range(0, len(groups), columns):
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, group in enumerate(groups[at : at + columns], at):
            mean = sum(core.busy for core in group) / len(group)
            line.append(f"device {number:>3} ", "dim")
            for core in group:
                line.append(_level(core.busy), _colour(core.busy))
            line.append(f" {mean:4.0%}   ")
        yield line


def _host(between: Between) -> str:
    system = between.after.by("system_vcpu_usage_ratio", "usage_type")
    engine = between.after.by("neuron_runtime_vcpu_usage_ratio", "usage_type")
    memory = between.after.total("neuron_runtime_memory_used_bytes", memory_location="host")
    count = between.after.total("system_vcpu_count")
    return (
        f"{sum(system.values()):.0%} of {count:.0f} vCPUs in use, {sum(engine.values()):.0%} by the engine; "
        f"it holds {_size(memory)}"
    )


def _cost(between: Between) -> str:
    """Of the tokens of the last seconds, at the device's pace and the instance's list price."""
    price = between.after.total("corepipe_device_dollars_per_hour")
    if not price:
        return "no list price"
    told, passed = f"${price:.3f} an hour (list price)", between.emulated_seconds
    tokens = between.count("vllm:generation_tokens_total")
    if not tokens or not passed:
        return told
    each = dollars_per_million_tokens(price, tokens / passed)
    return f"{told}, ${each:.2f} a million output tokens at the device's pace"


def _up(between: Between) -> float:
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
