"""From plans to an answer: submits sequences, follows their outputs, sends their parts, and aborts them when
the client has gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from starlette.types import Receive, Send

from corepipe.answers.banned_tokens import require_some, spelled
from corepipe.answers.parsing.formats import AnswerFormat
from corepipe.answers.parts import PromptTokens
from corepipe.answers.text_answer import Echo, TextAnswer
from corepipe.engine.messages import Predicted, Submit
from corepipe.serving.api.answering.rendering import EmulatedTimes, Renderer, ResponsePart, TokenUsage
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.submission import (
    AnswerObserver,
    AnswerOutputs,
    GeneratedChoice,
    RequestedDetails,
    answer,
    answer_outputs,
    charged,
    followed,
)
from corepipe.serving.api.bodies.protocol import GenerationRequest
from corepipe.serving.api.http.errors import ApiError, internal, invalid
from corepipe.serving.api.http.tenants import ANYONE, Tenant
from corepipe.serving.supervision.client import OutputStream

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """An encoded prompt and how to answer it; `source` is the field of the body that it came from.

    `max_tokens` None: `default_tokens`, or the rest of the context if that is less.  `logprobs` and
    `prompt_logprobs` are as in `TokenSampling`.  echo: the text that the answer begins with, if it repeats
    the prompt.  grammar: constrains the answer, as in `Submit`.  reading: how calls and reasoning are
    separated from the text.
    """

    prompt: list[int]
    source: str
    max_tokens: int | None
    default_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: Echo | None = None
    grammar: str = ""
    reading: AnswerFormat | None = None

    def tokens_within(self, context: int) -> int:
        """Returns the answer's most tokens.  Raises ApiError if it and the prompt do not fit the context."""
        wanted, room = self.max_tokens, context - len(self.prompt)
        if wanted is None and room > 0:
            return room if self.default_tokens is None else min(self.default_tokens, room)
        if room <= 0 or (wanted or 0) > room:
            message = (
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{len(self.prompt) + (wanted or 1)} tokens ({len(self.prompt)} in the {self.source}, "
                f"{wanted or 1} for the answer)."
            )
            raise invalid(message, self.source, "context_length_exceeded")
        return wanted or 0


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """A prepared request: its body, what to compute for it, and the renderer of its answer.

    `arrival` is when it came (perf_counter).  `id` is the answer's, which its client may have chosen; the
    ids of its sequences in the engine begin with `sequences`.  prediction: tokens that the client predicts.
    ignored: names of fields without effect.  singly: each token has events of its own, however many came
    together, so that the same answer has the same events.  keep: stores the answer as it would be sent whole;
    `kept_as` writes it.
    """

    id: str
    sequences: str
    body: GenerationRequest
    plans: Sequence[GenerationPlan]
    prediction: list[int]
    renderer: Renderer
    operation: str
    arrival: float
    device_metrics: bool = False
    tenant: Tenant = ANYONE
    trace: AnswerObserver | None = None
    ignored: Sequence[str] = ()
    singly: bool = False
    keep: Callable[[bytes], Awaitable[None]] | None = None
    kept_as: Renderer | None = None


class Generation:
    """Generates one answer.

    Raises ApiError, before anything is submitted, if a prompt does not fit the context.
    """

    def __init__(self, service: Service, job: GenerationJob) -> None:
        job.tenant.check(len(job.plans) * job.body.n, job.body.priority)
        self._service = service
        self._job = job
        self._renderer = job.renderer
        bad_words = job.body.bad_words
        self._bad_words = spelled(bad_words, service.tokenizer) if bad_words else []
        details = RequestedDetails.of(job.body)
        self._choices = [
            GeneratedChoice(answer, job.arrival, service.request_metrics(job.tenant), details)
            for answer in self._answers()
        ]
        self._left = len(self._choices)

    @property
    def submits(self) -> list[Submit]:
        """The messages to the engine: for each prompt, one for each of its choices."""
        return [choice.answer.submit for choice in self._choices]

    async def answer(self, receive: Receive, send: Send) -> None:
        """Sends the answer.  Raises ApiError if it fails before anything was sent.

        The sequences are aborted as soon as the client goes away.
        """
        prompts = sum(len(plan.prompt) for plan in self._job.plans)
        with charged(self._job.tenant.quota, len(self._choices), prompts, self._generated):
            streams = [self._service.client.submit(submit) for submit in self.submits]
            outputs = answer_outputs(streams, singly=self._job.singly)
            async with followed(streams, receive, lambda: self._report(streams)):
                answered = self._stream if self._job.body.stream else self._whole
                try:
                    await answered(outputs, send)
                finally:
                    await outputs.close()

    def _generated(self) -> int:
        return sum(choice.answer.generated for choice in self._choices)

    def _answers(self) -> Iterator[TextAnswer]:
        job, service = self._job, self._service
        context = service.require_ready().max_model_len
        skip = job.body.skip_special_tokens
        for at, plan in enumerate(job.plans):
            most = plan.tokens_within(context)
            pieces = service.pieces(plan.reading) if skip else service.raw
            for copy in range(job.body.n):
                index = at * job.body.n + copy
                submit = self._submission(index, copy, plan, max(most, 1))
                yield TextAnswer(
                    index, submit, job.body, pieces, plan.echo, silent=most == 0, reading=plan.reading
                )

    def _submission(self, index: int, copy: int, plan: GenerationPlan, max_tokens: int) -> Submit:
        body, tenant = self._job.body, self._job.tenant
        if body.min_tokens > max_tokens:
            raise invalid(f"min_tokens is more than max_tokens, {max_tokens}.", "min_tokens")
        stop_ids = set(body.stop_token_ids)
        if not body.ignore_eos or plan.grammar:  # the end of a grammar ends the answer
            stop_ids |= self._service.tokenizer.eos_ids
        submit = Submit(
            id=f"{self._job.sequences}-{index}",
            prompt=plan.prompt,
            max_tokens=max_tokens,
            sampling=body.sampling(copy, plan.logprobs, plan.prompt_logprobs, tenant.seed),
            stop_ids=sorted(stop_ids),
            min_tokens=body.min_tokens,
            priority=tenant.priority(body.priority),
            owner=tenant.turn,
            cache_salt=tenant.salt + body.cache_salt,
            told_salt=body.cache_salt,
            bad_words=self._bad_words,
            grammar=plan.grammar,
            prediction=self._job.prediction,
            speculation=body.speculation,
            adapter=self._service.adapter_of(body.model),
        )
        return submit if submit.sampling.allowed_token_ids is None else require_some(submit)

    async def _whole(self, outputs: AnswerOutputs, send: Send) -> None:
        parts: list[ResponsePart] = []
        while self._left:
            parts += await self._next(outputs)
        await self._keep(parts)
        await answer(send, self._renderer.whole([*parts, *self._of_all()]))

    async def _keep(self, parts: Sequence[ResponsePart]) -> None:
        """Stores the answer of these parts, if it is to be stored.  Raises ApiError."""
        job = self._job
        if job.keep is not None and job.kept_as is not None:
            await job.keep(job.kept_as.whole([*parts, *self._of_all()]))

    async def _stream(self, outputs: AnswerOutputs, send: Send) -> None:
        """Waits for the first output, so that an error still has its own status; then sends events."""
        parts = await self._next(outputs)
        kept = [] if self._job.keep is None else [*parts]
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        body = self._renderer.opening(len(self._choices), self._known(parts))
        try:
            body += self._event(parts)
            while self._left:
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                parts = await self._next(outputs)
                if self._job.keep is not None:
                    kept += parts
                body = self._event(parts)
            await self._keep(kept)
            body += self._renderer.closing(self._of_all() if self._job.body.usage_chunk else ())
        except ApiError as error:
            body = self._renderer.failed(error)
        except Exception:
            await send({"type": "http.response.body", "body": self._renderer.failed(internal())})
            raise
        await send({"type": "http.response.body", "body": body})

    async def _next(self, outputs: AnswerOutputs) -> Sequence[ResponsePart]:
        """Returns the next parts of a choice that has not ended; outputs after a choice's end are dropped."""
        while True:
            index, output = await outputs.next()
            choice = self._choices[index]
            if not choice.ended:
                break
        parts: Sequence[ResponsePart] = choice.take(output)
        if parts and self._job.body.usage_everywhere:
            parts = [*parts, _usage_of(choice.answer, choice.answer.generated)]
        if choice.answer.finish is not None:
            self._left -= 1
            if choice.answer.cut:
                await outputs.drop(index)
        return parts

    def _known(self, parts: Sequence[ResponsePart]) -> list[ResponsePart]:
        """Returns the parts that a stream can send before its text; `parts` are the first parts."""
        known: list[ResponsePart] = [part for part in parts if isinstance(part, PromptTokens)]
        if self._job.body.usage_everywhere:
            known.append(_usage_of(self._choices[0].answer, 0))
        return known

    def _event(self, parts: Sequence[ResponsePart]) -> bytes:
        """Returns the event of these parts; without a closing event, the last one has the device's times."""
        if self._left or self._job.body.usage_chunk:
            return self._renderer.event(parts)
        return self._renderer.event([*parts, *self._emulated()])

    def _of_all(self) -> list[ResponsePart]:
        return [self._usage(), *self._emulated()]

    def _usage(self) -> TokenUsage:
        firsts = [choice.answer for choice in self._choices[:: self._job.body.n]]
        return TokenUsage(
            prompt=sum(len(answer.submit.prompt) for answer in firsts),
            completion=sum(choice.answer.generated for choice in self._choices),
            cached=sum(answer.cached for answer in firsts),
            predicted=_sum([choice.answer for choice in self._choices]),
        )

    def _emulated(self) -> list[EmulatedTimes]:
        """Returns the emulated device's times, if they were requested."""
        if not self._job.device_metrics:
            return []
        lasts = [choice.answer.last for choice in self._choices]
        times = [last.device if last else None for last in lasts]
        drafts = [last.speculated if last else None for last in lasts]
        return [
            EmulatedTimes(
                self._service.engine.instance, times, self._service.observer.lateness.verdict, drafts
            )
        ]

    def _report(self, streams: Sequence[OutputStream]) -> None:
        """Reports to the metrics, and to the trace if there is one, how each choice ended.

        A choice without an end was given up: because another choice failed, else because the client left.
        """
        job, failures = self._job, [choice.failure for choice in self._choices]
        given_up = "error" if "error" in failures else "abort"
        parts = [
            choice.finished(given_up, job.body.n, stream)
            for choice, stream in zip(self._choices, streams, strict=True)
        ]
        self._service.request_metrics(job.tenant).finish(parts)
        if job.trace is not None:
            job.trace.answered(job.operation, job.body, job.id, parts)


def _usage_of(answer: TextAnswer, completion: int) -> TokenUsage:
    prompt, cached = len(answer.submit.prompt), answer.cached
    return TokenUsage(prompt, completion, cached, _sum([answer]))


def _sum(answers: Sequence[TextAnswer]) -> Predicted | None:
    """Returns how many predicted tokens were accepted and rejected in all; None without a prediction."""
    if not answers[0].submit.prediction:
        return None
    known = [answer.predicted for answer in answers if answer.predicted is not None]
    return Predicted(sum(one.accepted for one in known), sum(one.rejected for one in known))
