"""The service that every route uses: a model's engine, tokenizer, names, metrics and state."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.types import ASGIApp

from corepipe.answers.parsing.choose import Dialect, choose
from corepipe.answers.parsing.formats import AnswerFormat, CallFormat, ReasoningFormat
from corepipe.answers.parts import Pieces
from corepipe.engine.config import EngineConfig
from corepipe.engine.lora import AdapterRef
from corepipe.engine.messages import LoadProgress, Ready
from corepipe.models.tasks import Task, TaskInfo
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.models.vision.reader import ImageReader, ImageSetting
from corepipe.serving.api.answering.adapters import ServedAdapters
from corepipe.serving.api.answering.long_texts import LONG_TEXT, Encode, encode_text
from corepipe.serving.api.answering.request_templates import RequestTemplates
from corepipe.serving.api.bodies.protocol import GenerationRequest
from corepipe.serving.api.http.errors import ApiError, echo, invalid, overloaded, unavailable
from corepipe.serving.api.http.tenants import Tenant
from corepipe.serving.config import ServerConfig
from corepipe.serving.telemetry.metrics import Metrics
from corepipe.serving.telemetry.neuron_metrics import NeuronMetrics
from corepipe.serving.telemetry.observer import Observer, RequestMetrics
from corepipe.structured.constraints import Constraint, ConstraintError
from corepipe.structured.grammar_checker import GrammarChecker
from corepipe.structured.grammars import schema_of
from corepipe.structured.schemas import Schema
from corepipe.structured.spelling import ANY_TEXT, Spelling

if TYPE_CHECKING:  # the client's module loads the engine's, which may run in another process
    from corepipe.serving.supervision.client import EngineClient

ROUTES_OF: Mapping[Task, str] = {
    Task.GENERATE: "/v1/chat/completions or /v1/completions",
    Task.EMBED: "/v1/embeddings, /score or /rerank",
    Task.CLASSIFY: "/classify or /pooling",
    Task.SCORE: "/rerank or /score",
}
"""The routes that serve each task."""

GENERATES = TaskInfo(Task.GENERATE, max_tokens=0, dimensions=0)
"""The task of a model for which no other is set."""

STATES = {
    "loading": "The engine is loading.",
    "ready": "Requests are taken.",
    "restarting": "The engine was lost; another one is loading.",
    "sleeping": "The model sleeps; the next request wakes it.",
    "draining": "The server is about to end.",
    "failed": "The engine has stopped.",
}
"""The states of a server, and the message that it sends for each."""

NO_MODEL_LOADED = "This server replays recorded answers; it has loaded no model."

WORK_SECONDS = 10.0
"""The time limit for work on long text, the wait for a thread included."""
WORKERS = 2
"""Threads for long texts and images; they take processor time from the engine."""

_COMPUTING = {"model", "format", "bits", "kv_cache_dtype", "instance", "mode", "tensor", "expert", "lnc"}
"""Settings that the bits of logits may depend on."""

R = TypeVar("R")


class Service:
    """One model and its engine behind a server, which may have others (`models`).  `ready` is None until the
    engine has loaded.

    `task` is the model's task and facts about the model.

    A server that only replays answers has no tokenizer, and no engine behind the client.
    `failure` is the error that ended the engine for good; `on_failure` is called when that happens.
    `asleep`: the engine has ended, since nobody needs it now.
    `draining`: the server is about to end; requests under way go on, and new ones are refused.  `listed`: the
    names of all models, if there are several.  `apps`: then the applications of routes for this model, by
    what made them.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        engine: EngineConfig,
        server: ServerConfig,
        version: str,
        task: TaskInfo = GENERATES,
        observer: Observer | None = None,
    ) -> None:
        """`observer`: that of an earlier service of the model, whose counters go on."""
        self.client = client
        self.task = task
        self._tokenizer = tokenizer
        self.engine = engine
        self.version = version
        self.created = int(time.time())
        self.names = server.served_model_names or (engine.model,)
        self.strict = server.strict
        self.drop_hosted_tools = server.drop_hosted_tools
        self.special_tokens_in_text = server.allow_special_tokens_in_text
        trusted = tokenizer is not None and server.trust_request_chat_template
        self.request_templates = RequestTemplates(self.tokenizer) if trusted else None
        self.observer = observer or Observer(engine)
        self._of_lines = RequestMetrics(engine.max_model_len or 1)
        self.metrics = Metrics(client, self.names[0], engine, self.observer)
        self.neuron = NeuronMetrics(self.names[0], engine, self.observer)
        client.on_stats = self.observer.take
        client.on_ready = self.set_ready
        client.on_failure = self._fail
        self.ready: Ready | None = None
        self.progress: LoadProgress | None = None
        self.failure: Exception | None = None
        self.draining = self.asleep = False
        self.listed: tuple[str, ...] = ()
        self.apps: dict[object, ASGIApp] = {}
        self.adapters = ServedAdapters.of(engine, client)
        self.on_failure: Callable[[], None] = _nothing
        self._parsers = (server.tool_call_parser, server.reasoning_parser)
        self.dialect = Dialect() if tokenizer is None else choose(tokenizer, *self._parsers)
        self._marked: dict[tuple[CallFormat | None, ReasoningFormat | None], Pieces] = {}
        self._workers = ThreadPoolExecutor(WORKERS, "text")
        self._grammars = GrammarChecker(spelling=self._spelling)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.  Raises ApiError (503) if there is none."""
        if self._tokenizer is None:
            raise unavailable(NO_MODEL_LOADED)
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """The bound of token ids: the model's rows; the tokenizer may have no text for some of them."""
        return self.task.vocab_size or self.tokenizer.vocab_size

    @cached_property
    def shown(self) -> Pieces:
        """The bytes of each token, for texts that leave special tokens out."""
        return Pieces(self.tokenizer, skip_special_tokens=True)

    @cached_property
    def raw(self) -> Pieces:
        """The bytes of each token, for texts that show all tokens."""
        return Pieces(self.tokenizer, skip_special_tokens=False)

    @cached_property
    def images(self) -> ImageReader:
        """The reader of images, for a model that reads them and has a preprocessing."""
        images = self.task.images
        assert images is not None
        assert images.preprocessing is not None
        return ImageReader(ImageSetting(images.preprocessing, images.size))

    def _spelling(self) -> Spelling:
        return ANY_TEXT if self._tokenizer is None else Spelling.of(self._tokenizer)

    async def start(self) -> None:
        """Loads the engine; an error is kept in `failure`, and `run_server` raises it."""
        try:
            await self.load()
        except Exception as error:
            self._fail(error)

    async def load(self) -> None:
        """Loads the engine, or wakes it.  Raises UserError or EngineError, whichever is at fault."""
        self.set_ready(await self.client.start(self._note))
        self.asleep = False

    async def sleep(self) -> None:
        """Ends the engine, of which no request is under way.  Raises UserError where that is not possible."""
        await self.client.sleep()
        self.asleep = True
        self.metrics.rest()
        self.neuron.rest()

    def leave(self) -> None:
        """Lets the engine's client forget this service, of which another one will take the place."""
        self.client.on_ready = self.client.on_failure = _ignore
        self.on_failure = _nothing
        self.apps.clear()

    def _note(self, progress: LoadProgress) -> None:
        self.progress = progress

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.on_failure()

    def drain(self) -> None:
        """Refuses new requests from now on."""
        self.draining = True

    def set_ready(self, ready: Ready) -> None:
        """Accepts requests from now on."""
        self.ready = ready
        if self.adapters is not None:
            self.adapters.set_ready(ready.adapters)
        self.metrics.set_ready(ready)
        self.neuron.set_ready(ready)

    @property
    def state(self) -> str:
        """The state of the service: a key of `STATES`."""
        if self.failure is not None:
            return "failed"
        if self.draining:
            return "draining"
        if self.ready is None:
            return "loading"
        if self.asleep:
            return "sleeping"
        if self.client.alive:
            return "ready"
        return "restarting" if self.client.restarting else "failed"

    def require_ready(self) -> Ready:
        """Returns `Ready` in the state 'ready'.  Raises ApiError (503) in every other state."""
        state = self.state
        if self.ready is None or state != "ready":
            raise unavailable(f"{self.names[0]}: {STATES[state]}" if self.listed else STATES[state])
        return self.ready

    def require_model(self, name: str | None) -> str:
        """Returns the name for the answer.  Raises ApiError (404) for a name that is not served."""
        if name is None:
            return self.names[0]
        if name not in self.names and not (self.adapters and name in self.adapters):
            known = f"these do: {', '.join(self.listed)}" if self.listed else "/v1/models lists those that do"
            message = f"The model {echo(name)} does not exist; {known}."
            raise ApiError(404, message, code="model_not_found", param="model")
        return name

    def adapter_of(self, name: str | None) -> AdapterRef | None:
        """Returns the LoRA adapter to compute with for a request that names a model; None: the model itself.

        Raises ApiError (404) for a name that is not served any more.
        """
        return None if self.adapters is None else self.adapters.taken(self.require_model(name))

    @property
    def all_names(self) -> Iterator[str]:
        """The names that requests may use now: the model's own, and those of its LoRA adapters."""
        yield from self.names
        yield from (one.ref.name for one in self.adapters or ())

    def require_task(self, *tasks: Task) -> None:
        """Raises ApiError (400) unless the model does one of these tasks; it names the model's own."""
        task = self.task.task
        if task not in tasks:
            wanted = " or ".join(f"--task {one}" for one in tasks)
            message = (
                f"The model {echo(self.names[0])} is served with --task {task}: ask {ROUTES_OF[task]}. "
                f"This route needs a server that was started with {wanted}."
            )
            raise invalid(message, "model", "task_not_served")

    @property
    def most_tokens(self) -> int:
        """The most tokens of a text to embed, score or classify, for the model and the engine."""
        return min(self.task.max_tokens, self.require_ready().max_model_len)

    def dialect_of(self, tokenizer: Tokenizer) -> Dialect:
        """Returns the model's formats under this tokenizer's template, which a request may have brought."""
        return self.dialect if tokenizer is self.tokenizer else choose(tokenizer, *self._parsers)

    def pieces(self, reading: AnswerFormat | None) -> Pieces:
        """Returns the bytes of each token, without special tokens but those that mark calls or reasoning."""
        if reading is None:
            return self.shown
        formats = (reading.calls, reading.reasoning)
        if formats not in self._marked:
            marks = reading.marks(self.tokenizer.added_tokens)
            self._marked[formats] = Pieces(self.tokenizer, skip_special_tokens=True, keep=marks)
        return self._marked[formats]

    def request_metrics(self, tenant: Tenant) -> RequestMetrics:
        """Returns what counts a tenant's requests: those of batches, which wait for long, do not count among
        the others."""
        return self._of_lines if tenant.background else self.observer.requests

    async def encode(self, text: str, field: str, most: int, encode: Encode) -> list[int]:
        """Returns the token ids of `text`, which came in `field`; threads encode long text.

        Raises ApiError (400) for text that surely has more than `most` tokens, and (429) where it takes too
        long.
        """

        return await self.beside(len(text), lambda: encode_text(text, field, most, encode))

    async def beside(self, size: int, work: Callable[[], R]) -> R:
        """Returns what `work` returns; a thread does it if its `size`, in characters or tokens, is large.

        Raises ApiError (429) if that takes too long, the wait for a thread included.
        """
        if size < LONG_TEXT:
            return work()
        try:
            async with asyncio.timeout(WORK_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._workers, work)
        except TimeoutError:
            raise overloaded("The server is busy with other long texts or images; retry later.") from None

    async def grammar(self, body: GenerationRequest) -> str:
        """Returns the checked grammar of the answer; empty if it has none.

        Raises ApiError: 400 if the grammar is wrong or not supported, 429 if checking it takes too long.
        """
        with self._refusals():
            constraint = body.constraint()
        if constraint is None:
            return ""
        grammar = await self._checked(constraint)
        self.observer.constraints.taken(constraint.kind)
        return grammar

    async def checked_schema(self, schema: Mapping[str, Any], field: str) -> Schema:
        """Returns a schema in the form that grammars use.  Raises ApiError as `grammar` does."""
        text = msgspec.json.encode(schema).decode()
        return schema_of(await self._checked(Constraint(kind="json_schema", text=text, field=field)))

    async def _checked(self, constraint: Constraint) -> str:
        """Returns the grammar of a constraint.  Raises ApiError as `grammar` does."""
        metrics = self.observer.constraints
        with self._refusals():
            try:
                verdict = await self._grammars.check(constraint)
            except TimeoutError:
                metrics.refused("rate_limit_exceeded")
                raise overloaded("The server is busy with other constraints; retry later.") from None
            if verdict.seconds:
                metrics.check_seconds.observe(verdict.seconds)
            if verdict.error:
                raise ConstraintError(verdict.error, verdict.param, verdict.code)
        return verdict.grammar

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Counts a ConstraintError, and raises an ApiError in its place."""
        try:
            yield
        except ConstraintError as error:
            self.observer.constraints.refused(error.code)
            raise invalid(error.message, error.param, error.code) from None

    def close(self) -> None:
        """Ends the threads and processes that work beside the event loop."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()
        if "images" in self.__dict__:
            self.images.close()

    def fingerprint_of(self, name: str) -> str:
        """Returns the `fingerprint`, under a model's name: an adapter adds its content."""
        adapter = self.adapter_of(name)
        return self.fingerprint if adapter is None else f"{self.fingerprint}-{adapter.digest[:10]}"

    @cached_property
    def fingerprint(self) -> str:
        """An id of the configuration: equal fingerprints give equal answers to equal seeds."""
        facts: Mapping[str, Any] = {
            "version": self.version,
            "engine": self.engine.model_dump(
                mode="json",
                exclude={
                    *("cache_dir", "threads", "first_core", "cores", "kv_events_config"),
                    *("enable_lora", "lora_modules", "lora_dir", "max_loras", "max_lora_rank"),
                },
            ),
            "placement": self.require_ready().placement,
        }
        digest = hashlib.sha256(msgspec.json.encode(facts, order="deterministic"))
        return f"fp_{digest.hexdigest()[:10]}"

    def tokens_fingerprint(self, name: str) -> str:
        """Returns an id of all that the tokens of an answer depend on, beside its request to this model."""
        ready, engine = self.require_ready(), self.engine.model_dump(mode="json", include=_COMPUTING)
        facts = (self.version, engine, ready.isa, ready.weights, self.adapter_of(name))
        return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()[:16]


def _ignore(_news: object) -> None:
    """Ignores news of an engine that another service uses."""


def _nothing() -> None:
    """Does nothing: the handler of a failed start where the server was not started by `run_server`."""
