"""Deployments without a model: real schedulers, timelines and clocks over the null executor."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from corepipe.engine.batch.encoding import Encoding
from corepipe.engine.channel import Counter
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.deployment import Deployment, ReplicaParts
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Ready, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.errors import UserError
from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.step import Executor, SamplingBatch, StepInputs, StepOutput
from corepipe.neuron.timing.clock import Clock, HostClock, VirtualClock
from corepipe.neuron.timing.cost import StepShape
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import mixed
from corepipe.scheduler.scheduler import SchedulerConfig
from tests.null_executor import NullExecutor

VOCAB = 5000
GREEDY = TokenSampling(temperature=0.0)
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class FlatCost:
    """Seconds of a step on each stage: `fixed` and `row` for each row."""

    stages: int = 1
    fixed: float = 0.01
    row: float = 0.0
    tensor: int = 1

    @property
    def lone(self) -> FlatCost:
        return self

    def padded(self, shape: StepShape) -> StepShape:
        """Pads the rows to the next multiple of 32."""
        return shape._replace(counts=(-(-shape.rows // 32) * 32, *shape.counts[1:]))

    def stage_seconds(self, shape: StepShape) -> list[float]:
        return [self.fixed + self.row * shape.rows] * self.stages

    def transfers(self, shape: StepShape) -> list[float]:
        return [0.0] * self.stages

    def stage_totals(self, shape: StepShape) -> list[tuple[float, Engines]]:
        """Returns work of which VectorE does half, and TensorE all the time."""
        return [
            (s, Engines(tensor=s, vector=s / 2, read=1e9 * s, flops=1e12 * s))
            for s in self.stage_seconds(shape)
        ]

    def input_seconds(self, _shape: StepShape) -> float:
        return 0.0

    def result_seconds(self, _shape: StepShape) -> float:
        return 0.0

    def sampling_seconds(self, shape: StepShape) -> float:
        return 0.0


def scheduler_config(**changes: int) -> SchedulerConfig:
    fields: dict[str, int] = {
        "num_blocks": 256,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "prefix_cache": True,
        "max_queued_requests": 100,
        "max_queued_tokens": 10_000,
        **changes,
    }
    return SchedulerConfig(**fields)  # type: ignore[arg-type]


def deployment(
    replicas: int = 1,
    stages: int = 1,
    clock: Clock | None = None,
    executor: Callable[[], Executor] = lambda: NullExecutor(VOCAB),
    cost: FlatCost | None = None,
    seed: int = 0,
    **limits: int,
) -> Deployment:
    config = scheduler_config(stages=stages, **limits)
    cost = cost or FlatCost(stages)
    parts = tuple(
        ReplicaParts(executor(), Timeline(cost, PROFILES["ideal"]), config, mixed)  # type: ignore[arg-type]
        for _ in range(replicas)
    )
    ready = Ready({}, config.num_blocks, config.block_size, config.max_model_len, "none", 0.0)
    return Deployment(parts, clock or VirtualClock(), VOCAB, seed, ready)


class SummingExecutor(NullExecutor):
    """A stand-in for an encoder: its values for each sequence are [sum of its tokens, of its types, number of
    its rows], or for each token [token, type, position]. For a sequence with `BAD` they are not numbers."""

    def __init__(self, per_token: bool = False) -> None:
        super().__init__(VOCAB)
        self._per_token = per_token
        self.inputs: list[StepInputs] = []

    def _output(self, inputs: StepInputs, sampling: SamplingBatch | None) -> StepOutput:
        assert sampling is None, "nothing is drawn"
        self.inputs.append(inputs)
        types = inputs.types if len(inputs.types) else np.zeros_like(inputs.tokens)
        rows = np.stack([inputs.tokens, types, inputs.positions], axis=1).astype(np.float32)
        rows[inputs.tokens == BAD] = np.nan
        values = rows if self._per_token else self._sums(rows, inputs)
        return replace(super()._output(inputs, None), values=values)

    @staticmethod
    def _sums(rows: npt.NDArray[np.float32], inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Returns one row for each logit row, of the sequence that it belongs to."""
        starts = inputs.sequence_starts
        which = np.searchsorted(starts, inputs.logit_rows, side="right") - 1
        parts = [rows[starts[i] : starts[i + 1]] for i in which]
        sums = [[*part[:, :2].sum(axis=0), len(part)] for part in parts]
        return np.array(sums, np.float32).reshape(len(parts), 3)


BAD = VOCAB - 4
"""A token whose values are not numbers."""

WITH_TYPES = Encoding(types=True)

WHOLE = {"num_blocks": 0, "prefix_cache": False, "whole_prompts": True, "keeps_state": False}
"""Limits of a model that computes a prompt in one batch."""


def encoder(
    encoding: Encoding = WITH_TYPES, delay: float = 0.0, clock: Clock | None = None, **limits: int
) -> Deployment:
    """A deployment that generates nothing."""
    asked = (
        {"max_model_len": 64, **limits} if encoding.keeps_state else {**WHOLE, "max_model_len": 64, **limits}
    )
    plain = deployment(clock=clock, executor=lambda: SummingExecutor(encoding.per_token), **asked)
    replicas = tuple(replace(parts, max_batch_delay=delay) for parts in plain.replicas)
    ready = msgspec.structs.replace(plain.ready, task="embed")
    return replace(plain, replicas=replicas, ready=ready, encoding=encoding)


def floats(output: Output) -> list[list[float]]:
    """Returns the rows of values of a request's last output."""
    return np.frombuffer(output.values, "<f4").reshape(output.rows, -1).tolist()


def assemble_null(config: EngineConfig, progress: Progress, _beats: Counter) -> Deployment:
    """A Deployment for tests of the child process, as `assembly.assemble` would make one."""
    progress("loading", 0.5)
    progress("loading", 1.0)
    return deployment(seed=config.seed, max_num_seqs=config.max_num_seqs)


def submit(name: str, prompt: list[int] | int = 3, max_tokens: int = 4, **fields: object) -> Submit:
    ids = [len(name) + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Submit(name, ids, max_tokens, **{"sampling": GREEDY, **fields})  # type: ignore[arg-type]


def run(driver: Driver, limit: int = 10_000) -> list[Output]:
    """Returns all outputs until nothing is left to do."""
    news: list[Output] = []
    for _ in range(limit):
        if not driver.busy:
            return news
        news += driver.turn()
    raise AssertionError("the driver does not come to an end")


def by_request(outputs: list[Output]) -> dict[str, list[Output]]:
    found: dict[str, list[Output]] = {}
    for output in outputs:
        found.setdefault(output.id, []).append(output)
    return found


def tokens_of(outputs: list[Output]) -> dict[str, list[int]]:
    return {name: [t for o in news for t in o.tokens] for name, news in by_request(outputs).items()}


class ManualTime:
    """Time that passes only during sleeps and work."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


class SlowExecutor(NullExecutor):
    """A host that takes `seconds` for each batch."""

    def __init__(self, time: ManualTime, seconds: float) -> None:
        super().__init__(VOCAB)
        self._time = time
        self._seconds = seconds

    def wait(self, ticket: int) -> StepOutput:
        self._time.sleep(self._seconds)
        return super().wait(ticket)


class PoliteExecutor(NullExecutor):
    """Sleeps a millisecond for each batch, the time that a model would take."""

    def wait(self, ticket: int) -> StepOutput:
        time.sleep(0.001)
        return super().wait(ticket)


def assemble_slow(_config: EngineConfig, _progress: Progress, _beats: Counter) -> Deployment:
    return deployment(executor=lambda: PoliteExecutor(VOCAB), clock=HostClock())


HELD_AT = 64
"""The position in a sequence from which on a held engine computes nothing."""


class HeldExecutor(PoliteExecutor):
    """Stops sequences that have come to `HELD_AT` while the file `gate` exists; the engine lives on."""

    def __init__(self, vocab_size: int, gate: Path, beats: Counter) -> None:
        super().__init__(vocab_size)
        self._gate = gate
        self._beats = beats

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        while inputs.positions.max() >= HELD_AT and self._gate.exists():
            self._beats[0] += 1
            time.sleep(0.01)
        return super().submit(inputs, sampling)


def assemble_held(config: EngineConfig, _progress: Progress, beats: Counter) -> Deployment:
    """Makes a deployment whose gate is the file that the model's name names."""
    return deployment(executor=lambda: HeldExecutor(VOCAB, Path(config.model), beats), clock=HostClock())


def assemble_refused(_config: EngineConfig, _progress: Progress, _beats: Counter) -> Deployment:
    raise UserError("no such model; name one that exists")


def assemble_broken(_config: EngineConfig, _progress: Progress, _beats: Counter) -> Deployment:
    raise ZeroDivisionError("a fault of ours")


def assemble_gone(_config: EngineConfig, _progress: Progress, _beats: Counter) -> Deployment:
    os._exit(9)


def assemble_forever(_config: EngineConfig, progress: Progress, _beats: Counter) -> Deployment:
    progress("loading", 0.0)
    time.sleep(3600)
    raise AssertionError("nobody waits so long")


LOAD_CPU_SECONDS = 1.0


def assemble_busily(config: EngineConfig, progress: Progress, beats: Counter) -> Deployment:
    """Works for `LOAD_CPU_SECONDS` of processor time, and reports its progress twenty times."""
    began = time.process_time()
    for done in range(20):
        progress("loading", done / 20)
        while time.process_time() - began < LOAD_CPU_SECONDS * (done + 1) / 20:
            pass
    return assemble_fragile(config, progress, beats)


DEADLY, FAULTY, ENDLESS = VOCAB - 1, VOCAB - 2, VOCAB - 3
"""Tokens of prompts that kill the engine, make it fail, or make it hang."""


class FragileExecutor(PoliteExecutor):
    """Fails at certain tokens. `fate`: a signal that it sends itself, and in which step: "SIGKILL@12"."""

    def __init__(self, vocab_size: int, fate: str = "") -> None:
        super().__init__(vocab_size)
        self._signal, _, step = fate.partition("@")
        self._left = int(step or 0)

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.Signals[self._signal])
        tokens = set(inputs.tokens.tolist())
        if DEADLY in tokens:
            os.kill(os.getpid(), signal.SIGSEGV)
        if FAULTY in tokens:
            raise RuntimeError("the device is on fire")
        if ENDLESS in tokens:
            time.sleep(3600)
        return super().submit(inputs, sampling)


def assemble_fragile(config: EngineConfig, _progress: Progress, _beats: Counter) -> Deployment:
    return deployment(
        executor=lambda: FragileExecutor(ENDLESS, config.model),  # it draws none of the tokens it breaks at
        clock=HostClock(),
        seed=config.seed,
        max_num_seqs=config.max_num_seqs,
    )


class FragileEncoder(SummingExecutor):
    """Sends itself SIGKILL in its third step, unless another engine has done so before it."""

    def __init__(self, once: Path) -> None:
        super().__init__()
        self._once = once

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        if len(self.inputs) == 2 and not self._once.exists():
            self._once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(inputs, sampling)


def assemble_fragile_encoder(config: EngineConfig, _progress: Progress, _beats: Counter) -> Deployment:
    assert config.cache_dir is not None
    whole = encoder(clock=HostClock(), max_num_seqs=config.max_num_seqs)
    executor = FragileEncoder(config.cache_dir / "killed")
    return replace(whole, replicas=tuple(replace(parts, executor=executor) for parts in whole.replicas))


def assemble_once(config: EngineConfig, progress: Callable[[str, float], None], beats: Counter) -> Deployment:
    """Loads while there is no file `loaded` in the cache directory, and makes one."""
    assert config.cache_dir is not None
    try:
        (config.cache_dir / "loaded").touch(exist_ok=False)
    except FileExistsError:
        os._exit(9)
    return assemble_fragile(config, progress, beats)
