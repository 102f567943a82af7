"""The client: sends the turns of a workload as requests of the OpenAI API, and records their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Any, Literal

import msgspec

from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.pooled import PooledAnswer, Results
from corepipe.bench.prompts import Speller
from corepipe.bench.stream import StreamChunk, StreamedAnswer
from corepipe.bench.target import Http
from corepipe.bench.transport import TransportError
from corepipe.workload.workload import Segment, Session, Turn

Api = Literal["completions", "chat", "embeddings", "classify", "rerank"]
PATHS: dict[Api, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
    "classify": "/classify",
    "rerank": "/v1/rerank",
}
GENERATING: frozenset[Api] = frozenset(("completions", "chat"))
"""APIs whose answers are token streams; answers of the others come whole."""

QUERY_TOKENS = 8
"""Tokens of the query by which documents are ranked."""

MOST_DOCUMENTS = 1024
"""Documents of a query at most."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings of requests.

    adapters: names of LoRA adapters that requests use in the place of `model`, by the numbers of sessions.
    documents: number to rank for each query.  extra: fields of the body; null removes a field that is sent
    otherwise. cancel: share of requests that the client cancels in the middle.  seconds: timeout for a whole
    answer. keep_text: answers are part of later turns.
    """

    model: str
    api: Api = "completions"
    documents: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    cancel: float = 0.0
    seconds: float = 600.0
    seed: int = 0
    device_times: bool = False
    keep_text: bool = False
    run_id: str = "bench"
    adapters: tuple[str, ...] = ()

    def model_of(self, session: Session) -> str:
        """Returns the model that a session's requests name."""
        return self.model if session.adapter is None else self.adapters[session.adapter]

    @property
    def generates(self) -> bool:
        """Tells whether answers are tokens."""
        return self.api in GENERATING


@dataclass(slots=True)
class ActiveSession:
    """A session in progress and its answers so far, by the segment that stands for each in later prompts."""

    session: Session
    number: int
    answers: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A turn as a request to send.  most_chunks: the client then disconnects; None: it reads all."""

    session: int
    turn: int
    asked_input: int
    asked_output: int
    data: bytes
    request_id: str
    most_chunks: int | None = None


class LoadClient:
    """Makes requests and sends them.  `count` counts the tokens of answers where the server does not."""

    def __init__(
        self, http: Http, asking: RequestSettings, speller: Speller, count: Callable[[str], int] | None = None
    ) -> None:
        self._http = http
        self._count = count
        self._asking = asking
        self._speller = speller
        self._numbers = 0
        self._decoder = msgspec.json.Decoder(StreamChunk, strict=False)
        self._whole = msgspec.json.Decoder(Results, strict=False)
        self._open_answers: set[StreamedAnswer | PooledAnswer] = set()
        self._hang_ups = Random(f"{asking.seed} cancel")  # noqa: S311 -- a workload is no secret

    @property
    def chunks_under_way(self) -> int:
        """The number of chunks with tokens in answers that have not ended."""
        return sum(len(answer.stamps) for answer in self._open_answers)

    def prepare(self, talk: ActiveSession, turn: int) -> PreparedRequest:
        """Makes the request of a turn; the turns before it have been answered."""
        asked, asking = talk.session.turns[turn], self._asking
        number, self._numbers = self._numbers, self._numbers + 1
        texts = self._generated(talk, turn) if asking.generates else self._pooled(asked)
        body = {"model": asking.model_of(talk.session), **texts, **asking.extra}
        data = msgspec.json.encode({name: value for name, value in body.items() if value is not None})
        request_id = f"{asking.run_id}-{number}"
        headers = f"x-request-id: {request_id}\r\n" + "x-corepipe-device: 1\r\n" * asking.device_times
        most = None
        if self._hang_ups.random() < asking.cancel:
            most = self._hang_ups.randint(1, max(1, asked.output_tokens - 1))
        whole = self._http.request("POST", PATHS[asking.api], data, headers)
        inputs = asked.prompt_tokens * asking.documents
        outputs = asked.output_tokens if asking.generates else 0
        return PreparedRequest(talk.number, turn, inputs, outputs, whole, request_id, most)

    async def send(self, request: PreparedRequest, intended: float) -> RequestOutcome:
        """Sends a request and reads its answer to the end; `unfinished` where the task is cancelled."""
        sent = perf_counter()
        outcome = RequestOutcome(
            request.session, request.turn, request.asked_input, request.asked_output,
            intended, sent, request_id=request.request_id,
        )  # fmt: skip
        answer = self._answer(request)
        self._open_answers.add(answer)
        try:
            broken = await self._exchange(request, answer)
            _judge(outcome, answer, broken)
        except asyncio.CancelledError:
            outcome.end = "unfinished"
        self._open_answers.discard(answer)
        self._note(outcome, answer)
        return outcome

    def _answer(self, request: PreparedRequest) -> StreamedAnswer | PooledAnswer:
        if self._asking.generates:
            return StreamedAnswer(self._decoder, request.most_chunks)
        return PooledAnswer(self._whole, self._asking.documents)

    async def _exchange(
        self, request: PreparedRequest, answer: StreamedAnswer | PooledAnswer
    ) -> tuple[str, str] | None:
        """Reads an answer; returns the kind and the message of the failure that interrupted it, or None."""
        try:
            async with asyncio.timeout(self._asking.seconds):
                await self._http.pool.exchange(request.data, answer)
        except TimeoutError:
            return "timeout", f"no whole answer in {self._asking.seconds:g} s"
        except TransportError as error:
            return "cut" if answer.stamps else error.kind, str(error)
        answer.end(perf_counter())
        return None

    def _note(self, outcome: RequestOutcome, answer: StreamedAnswer | PooledAnswer) -> None:
        outcome.ended = perf_counter()
        outcome.generated = self._asking.generates
        outcome.first, outcome.last = answer.first, answer.last or None
        outcome.stamps = answer.stamps
        if answer.usage is not None:
            outcome.input_tokens = answer.usage.prompt_tokens or answer.usage.total_tokens or 0
            outcome.output_tokens = answer.usage.completion_tokens or 0
            details = answer.usage.prompt_tokens_details
            outcome.cached_tokens = (details.cached_tokens or 0) if details else 0
        elif self._count is not None and answer.stamps:
            outcome.input_tokens, outcome.output_tokens = outcome.asked_input, self._count(answer.text)
        if answer.device is not None:
            device = answer.device
            outcome.device = (device.time_to_first_token_ms, device.time_per_output_token_ms)
        if self._asking.keep_text:
            outcome.text = answer.text

    def _generated(self, talk: ActiveSession, turn: int) -> dict[str, Any]:
        return {
            **self._prompt(talk, turn),
            "max_tokens": talk.session.turns[turn].output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _pooled(self, asked: Turn) -> dict[str, Any]:
        """Returns the inputs of a request that does not generate: a text, or a query and documents, each with
        different words."""
        if self._asking.api != "rerank":
            return {"input": self._speller.text(asked.prompt)}
        *shared, own = asked.prompt
        parts = [Segment(-1 - own.id * MOST_DOCUMENTS - n, own.tokens) for n in range(self._asking.documents)]
        query = self._speller.text([Segment(own.id, QUERY_TOKENS)], alone=False)
        return {"query": query, "documents": [self._speller.text([*shared, part]) for part in parts]}

    def _prompt(self, talk: ActiveSession, turn: int) -> dict[str, Any]:
        messages = _messages(talk, turn, self._speller)
        if self._asking.api == "chat":
            return {"messages": messages}
        if self._speller.by_ids and turn == 0:
            return {"prompt": self._speller.ids(talk.session.turns[0].prompt)}
        return {"prompt": "".join(message["content"] for message in messages)}


def _judge(
    outcome: RequestOutcome, answer: StreamedAnswer | PooledAnswer, broken: tuple[str, str] | None
) -> None:
    """Sets how an answer ended: an error that the server reported precedes a failure of the connection."""
    failure = answer.reported_failure()
    if failure is None and answer.enough:
        outcome.end = "cancelled"
        return
    failure = failure or broken or answer.missing()
    if failure is None:
        outcome.end = "completed"
    else:
        outcome.end, (outcome.error, outcome.detail) = "failed", failure


def _messages(talk: ActiveSession, turn: int, speller: Speller) -> Sequence[dict[str, str]]:
    """Returns the messages: shared prefixes are the system message; user and assistant then take turns."""
    prompt = talk.session.turns[turn].prompt
    first = min(len(talk.session.turns[0].prompt), len(prompt)) - 1
    shared, own = prompt[:first], prompt[first:]
    messages = [{"role": "system", "content": speller.text(shared, alone=False)}] if shared else []
    for number, segment in enumerate(own):
        answer = talk.answers.get(segment.id)
        said = speller.text([segment], alone=number == 0) if answer is None else answer
        messages.append({"role": "user" if answer is None else "assistant", "content": said})
    return messages
