"""A scripted engine, a small tokenizer, and the real app on a real socket."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvloop
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import (
    DeviceTimes,
    LoadProgress,
    Output,
    Ready,
    StageWork,
    Stats,
    Submit,
    TokenLogprobs,
)
from corepipe.models.tasks import TaskInfo
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.serving.api.answering.service import GENERATES
from corepipe.serving.api.app import HttpServer, create_app, make_server
from corepipe.serving.api.cassettes.no_engine import NOTHING_LOADED, NoEngine
from corepipe.serving.api.cassettes.server_cassettes import ServerCassettes
from corepipe.serving.api.http.ports import listen_all
from corepipe.serving.config import ServerConfig
from corepipe.serving.supervision.client import OutputStream
from corepipe.structured import grammar_checker
from tests.servers import PATIENCE_SECONDS

TEXT = Path(__file__).parent.parent / "data" / "perplexity.txt"
MODEL = "tiny"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
READY = Ready(
    placement={"instance": "inf2.xlarge", "pipeline": 1, "tensor": 1, "data": 1},
    blocks=64,
    block_size=32,
    max_model_len=256,
    isa="portable",
    load_seconds=0.1,
)
STATS = Stats(
    replica=0,
    running=2,
    waiting=1,
    waiting_tokens=7,
    blocks_total=64,
    blocks_held=16,
    blocks_cached=8,
    preemptions=3,
    prefix_queries=100,
    prefix_hits=40,
    prompt_tokens=60,
    prompt_tokens_cached=25,
    generation_tokens=50,
    steps=20,
    host_busy_seconds=1.5,
    device_busy_seconds=0.5,
    device_now_seconds=2.0,
    late_steps=4,
    core_busy_seconds=[0.25, 0.25],
    iteration_tokens=[1, 300],
    work=[StageWork([0.2, 0.1, 0.05, 0.0, 0.25, 0.0], 2e12, 3e9)],
    step_seconds=[(0.002, 0.003)],
)
DEVICE = DeviceTimes(
    arrived_at_s=0.5,
    time_in_queue_ms=4.5,
    time_to_first_token_ms=12.5,
    time_per_output_token_ms=2.5,
    total_ms=20.0,
)

FOREVER = 86400.0
Step = Output | float | threading.Event
Script = Callable[[Submit], Sequence[Step]]
Serve = Callable[[TaskInfo], tuple[str, "FakeEngine"]]
"""Returns the URL and the engine of a server of a task."""


@functools.cache
def tokenizer() -> Tokenizer:
    """Makes a byte-level BPE of 600 tokens; `<|im_end|>` is its eos."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT.read_text().splitlines(), trainer)
    return Tokenizer(backend, {"eos_token": "<|im_end|>"}, TEMPLATE)


def saying(text: str, *, pause: float = 0.0, ends: str | None = None) -> Script:
    """Answers with `text` a token at a time, over and over until `max_tokens`; or once, if it `ends`."""
    tokens = tokenizer().encode(text, add_special_tokens=False)

    def script(submit: Submit) -> list[Step]:
        count = min(len(tokens), submit.max_tokens) if ends else submit.max_tokens
        steps: list[Step] = []
        for at in range(count):
            if pause:
                steps.append(pause)
            token = tokens[at % len(tokens)]
            last = at == count - 1
            more: dict[str, Any] = {"logprobs": _logprobs([token], submit.sampling.logprobs)}
            if at == 0:
                asked = submit.sampling.prompt_logprobs
                more |= {"cached": 2, "prompt_logprobs": _logprobs(submit.prompt[1:], asked)}
            if last:
                more |= {"finish_reason": ends or "length", "device": DEVICE}
            steps.append(Output(submit.id, [token], **more))
        return steps

    return script


def begun(text: str) -> Script:
    """Answers with the first token of `text`, and then with nothing for as long as any test takes."""

    def script(submit: Submit) -> list[Step]:
        return [Output(submit.id, tokenizer().encode(text)[:1], cached=2), FOREVER]

    return script


def _logprobs(tokens: Sequence[int], count: int | None) -> list[TokenLogprobs]:
    if count is None:
        return []
    return [TokenLogprobs(t, -0.5, [(t, -0.5), (t + 1, -1.5)][:count], rank=7) for t in tokens]


async def whole_pause(seconds: float) -> None:
    """Sleeps for at least that long: uvloop's timers count whole milliseconds, and may end one too early."""
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        await asyncio.sleep(left)


@dataclass
class FakeEngine:
    """An engine that answers every Submit by a script: outputs, pauses in seconds, and events to wait for."""

    script: Script = field(default_factory=lambda: saying("Hello world. "))
    start_with: Ready | Exception = READY
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    start_gate: threading.Event | None = None
    alive: bool = True
    restarting: bool = False
    restarts: dict[str, int] = field(default_factory=dict)
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    on_ready: Callable[[Ready], None] = field(default=print)
    on_failure: Callable[[Exception], None] = field(default=print)
    stats: list[Stats] = field(default_factory=lambda: [STATS])
    submitted: list[Submit] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    abort_calls: int = 0
    closed: bool = False
    on_stats: Callable[[Stats], None] = field(default=print)

    def __post_init__(self) -> None:
        self._first = self.script

    def begin_anew(self) -> None:
        """Forgets what was submitted, and answers by its first script."""
        self.script = self._first
        self.submitted.clear()
        self.aborted.clear()

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        if progress is not None:
            progress(LoadProgress("weights", 0.5))
        while self.start_gate is not None and not self.start_gate.is_set():
            await asyncio.sleep(0.005)
        if isinstance(self.start_with, Exception):
            raise self.start_with
        return self.start_with

    def submit(self, submit: Submit) -> OutputStream:
        self.submitted.append(submit)
        stream = OutputStream(submit.id, self.abort)
        task = asyncio.ensure_future(self._play(self.script(submit), stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def abort_all(self) -> None:
        self.abort_calls += 1
        self.abort([submit.id for submit in self.submitted])

    def abort(self, ids: Sequence[str]) -> None:
        self.aborted += ids

    async def sleep(self) -> None:
        self.alive = False

    async def close(self) -> None:
        self.closed = True

    async def _play(self, steps: Sequence[Step], stream: OutputStream) -> None:
        """Plays a script.  Outputs without a pause between them are merged, as when the server lags behind.

        With a pause they are not, however long the server takes.
        """
        stream.start()
        for step in steps:
            if stream.request_id in self.aborted:
                return
            if isinstance(step, threading.Event):
                while not step.is_set():
                    await asyncio.sleep(0.005)
            elif isinstance(step, float):
                await whole_pause(step)
                while stream._pending and stream.request_id not in self.aborted:
                    await asyncio.sleep(0.001)
            else:
                stream.push(step)


def openai_client(url: str, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, **more)


def chunks_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Returns the events of a whole stream of a completion or a chat."""
    assert answer.status_code == 200, answer.text
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


@contextmanager
def replaying(folder: Path, **server: object) -> Iterator[str]:
    """Does what `running` does, for a server without an engine that answers from a directory."""
    with running(NoEngine(), ready=NOTHING_LOADED, replay=folder, **server) as url:
        yield url


@contextmanager
def running(engine: FakeEngine | NoEngine, **more: Any) -> Iterator[str]:
    """Does what `running_ports` does; yields the URL of the public port alone."""
    with running_ports(engine, **more) as (public, *_):
        yield public


@contextmanager
def running_ports(
    engine: FakeEngine | NoEngine,
    *,
    ready: Ready | None = READY,
    text: Tokenizer | None = None,
    task: TaskInfo = GENERATES,
    **server: object,
) -> Iterator[list[str]]:
    """Runs the real app behind the real HTTP server; yields the URLs of its ports, the public one first.

    text: another tokenizer; task: the model's task; server: settings of the server.
    """
    config = ServerConfig.model_validate({"port": 0, **server})
    deployment = EngineConfig(model=MODEL, max_num_seqs=8)
    cassettes = None if config.record is None and config.replay is None else ServerCassettes(config)
    vocabulary = None if config.replays_alone else text or tokenizer()
    app = create_app(engine, vocabulary, deployment, config, "1.2.3", ready, cassettes, task)
    with pytest.MonkeyPatch.context() as patience, serving(make_server(app, config), config) as urls:
        patience.setattr(grammar_checker, "WAIT_SECONDS", PATIENCE_SECONDS)
        yield urls


@contextmanager
def serving(http: HttpServer, config: ServerConfig) -> Iterator[list[str]]:
    """Runs the real HTTP server in a thread; yields the URLs of its ports."""
    listeners = listen_all(config)
    urls = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in listeners]  # a server that ends closes them
    thread = threading.Thread(target=lambda: uvloop.run(http.serve(sockets=listeners)))
    thread.start()
    try:
        yield urls
    finally:
        http.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
