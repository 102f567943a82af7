"""The limits of a kernel, and what would help, in words, from the figures of its run.

A gain is an upper bound: all engines then work side by side, and what the advice is about takes no longer
than it must.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from corepipe.nki.core.instructions import Engine
from corepipe.nki.timing.times import EngineTime, Times

WORTH = 1.05
"""Factor of speed from which on a change is proposed."""

NOTABLE = 0.15
"""Share of the time from which on spills are reported even if DMA does not limit the kernel."""

SPARE = 0.5
"""Share of the busiest engine's time below which another engine could take some of its work."""

SHORT_SECONDS: Mapping[Engine, float] = MappingProxyType(
    {Engine.TENSOR: 0.1e-6, Engine.VECTOR: 0.25e-6, Engine.SCALAR: 0.25e-6, Engine.GPSIMD: 0.25e-6}
)
"""Mean time of an instruction below which most of it is its start: that of about 128 elements a partition."""

NAMES: Mapping[Engine, str] = MappingProxyType(
    {
        Engine.TENSOR: "TensorE",
        Engine.VECTOR: "VectorE",
        Engine.SCALAR: "ScalarE",
        Engine.GPSIMD: "GpSimd",
        Engine.DMA: "DMA",
    }
)

RELIEF: Mapping[Engine, Engine] = MappingProxyType(
    {
        Engine.VECTOR: Engine.SCALAR,
        Engine.SCALAR: Engine.VECTOR,
        Engine.GPSIMD: Engine.VECTOR,
    }
)
"""The engine that can take elementwise work of another: as fast, and with access to the same memories."""


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A run: its times; the bytes of its inputs; whether one of these is fp32; the frame in seconds."""

    times: Times
    input_bytes: int
    wide: bool
    frame: float = 0.0

    @property
    def seconds(self) -> float:
        """The time without the frame, which no change of the kernel shortens."""
        return self.times.seconds - self.frame

    @property
    def needed(self) -> int:
        """Bytes that must be moved: what is read of the inputs, and the outputs, once."""
        traffic = self.times.traffic
        return min(self.input_bytes, traffic.read - traffic.reloaded) + traffic.written - traffic.spilled

    def busy(self, engine: Engine) -> float:
        """Returns the seconds for which an engine works."""
        return self.times.engines.get(engine, EngineTime(0.0, 0)).busy

    def gain(self, **changed: float) -> float:
        """Returns the most by which the kernel could be faster if engines were busy for other times."""
        least = max(changed.get(engine.value, self.busy(engine)) for engine in Engine)
        return self.times.seconds / (self.frame + least) if least else 1.0


def advice(run: KernelRun) -> list[str]:
    """Returns what limits the kernel, with the changes that would help, the largest part first."""
    times, busiest = run.times, max(Engine, key=run.busy)
    if times.bound == busiest:
        found = [_busy(run, busiest)]
    else:
        found = [_joined(times.bound, [_would("an end of all waits", run.gain())])]
    if busiest is not Engine.DMA and run.busy(Engine.DMA) >= NOTABLE * times.seconds:
        found += _spills(run)
    return found


def _busy(run: KernelRun, engine: Engine) -> str:
    text = f"{NAMES[engine]} is busy {_percent(run.busy(engine) / run.seconds)} of the time"
    if engine is Engine.DMA:
        traffic = run.times.traffic
        text += f": {size(traffic.read + traffic.written)} between HBM and the core"
        return _joined(text, _of_transfers(run))
    return _joined(text, _of_products(run) if engine is Engine.TENSOR else _of_elements(run, engine))


def _of_transfers(run: KernelRun) -> Iterator[str]:
    """Yields what would make transfers shorter."""
    traffic = run.times.traffic
    moved = traffic.read + traffic.written
    yield from _spills(run)
    again = moved - traffic.spilled - traffic.reloaded - run.needed
    if moved and again > 0:
        change = f"moving each input and output once ({size(run.needed)})"
        would = _would(change, run.gain(dma=run.busy(Engine.DMA) * run.needed / moved))
        if would:
            yield would
            return
    if run.wide:
        yield _would("bf16 instead of fp32", run.gain(dma=run.busy(Engine.DMA) / 2))
    yield "computing what comes before or after in the same kernel would save its transfers"


def _spills(run: KernelRun) -> Iterator[str]:
    traffic = run.times.traffic
    spilled = traffic.spilled + traffic.reloaded
    if spilled:
        left = 1 - spilled / (traffic.read + traffic.written)
        gain = run.gain(dma=run.busy(Engine.DMA) * left)
        text = f"{size(traffic.spilled)} are spilled to HBM and {size(traffic.reloaded)} read again"
        yield _joined(text, [_would("tiles that fit into SBUF", gain)])


def _of_products(run: KernelRun) -> Iterator[str]:
    if run.wide:
        yield _would("bf16 instead of fp32", run.gain(tensor=run.busy(Engine.TENSOR) / 4))
    if _is_short(run, Engine.TENSOR):
        yield "products of 128 x 128 by 128 x 512 fill it"


def _of_elements(run: KernelRun, engine: Engine) -> Iterator[str]:
    """Yields which engine could take a part of the work, or that none can."""
    if _is_short(run, engine):
        each = run.busy(engine) / run.times.engines[engine].instructions
        yield f"an instruction takes {1e9 * each:.0f} ns, most of it to start: larger tiles would help"
    other = RELIEF[engine]
    beside = f"{NAMES[other]}, which is busy {_percent(run.busy(other) / run.seconds)}"
    if run.busy(other) < SPARE * run.busy(engine):
        level = (run.busy(engine) + run.busy(other)) / 2
        gain = run.gain(**{engine.value: level, other.value: level})
        yield _would(f"moving work to {beside},", gain)
    else:
        yield f"fewer or fused instructions would help, and not moving them to {beside}"


def _is_short(run: KernelRun, engine: Engine) -> bool:
    """Tells whether most of the time of an engine's instructions is their start."""
    return run.busy(engine) < SHORT_SECONDS[engine] * run.times.engines[engine].instructions


def _would(change: str, gain: float) -> str:
    """Returns by how much a change would help; empty where it is not worth it."""
    if gain < WORTH:
        return ""
    faster = f"{gain:.1f} times as fast" if gain >= 1.5 else f"{100 - 100 / gain:.0f} % shorter"
    return f"{change} would make it at most {faster}"


def _joined(text: str, changes: Iterable[str]) -> str:
    return "; ".join([text, *filter(None, changes)])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def size(count: float) -> str:
    """Returns a number of bytes with its unit."""
    if not count:
        return "0"
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 1e3:.1f} kB"
