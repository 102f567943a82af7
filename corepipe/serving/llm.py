"""The engine as a library: `LLM(model).generate(prompts)`, in this process and without a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from corepipe.errors import UserError
from corepipe.models import hub, registry
from corepipe.models.tokenizer import Tokenizer
from corepipe.scheduler.request import FinishReason
from corepipe.serving.config import EngineConfig, validated
from corepipe.serving.detokenizer import Detokenizer, Pieces
from corepipe.serving.engine.assembly import assemble
from corepipe.serving.engine.deployment import Deployment
from corepipe.serving.engine.driver import Driver
from corepipe.serving.messages import Abort, DeviceTimes, Output, Sampling, Submit, TokenLogprobs

Prompt = str | list[int]
"""Text, or token ids."""
Conversation = Sequence[Mapping[str, object]]
"""Messages of a chat: {"role": ..., "content": ...}."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to answer a prompt; names and defaults as in vLLM.

    max_tokens None: as many as fit.  stop: strings that end the text, which are not part of it unless
    `include_stop_str_in_output`.  logprobs, prompt_logprobs: alternatives to report for each token
    (0: of the token alone).  logit_bias: added to the logits of these tokens.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings; an empty one stops nothing."""
        return tuple(filter(None, (self.stop,) if isinstance(self.stop, str) else self.stop))

    def sampling(self) -> Sampling:
        """The part that concerns the draw of a token."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            logit_bias=dict(self.logit_bias),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """An answer.

    finish_reason: "stop" (a stop token or string) or "length".  logprobs: one entry for each token id,
    prompt_logprobs one for each prompt token after the first; empty where not asked for.  device: what
    the emulated device would have taken.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs]
    cached_tokens: int
    device: DeviceTimes | None


class LLM:
    """A model, loaded and ready; use it in a `with` statement, or `close` it.

    `options` are the fields of EngineConfig.  Raises UserError where the model or an option is at fault.
    """

    def __init__(self, model: str = hub.DEFAULT_MODEL, **options: object) -> None:
        config = validated(EngineConfig, {"model": model, **options})
        tokenizer = registry.load(hub.resolve(model)).tokenizer()
        self._open(assemble(config, lambda _what, _done: None), tokenizer)

    @classmethod
    def of(cls, deployment: Deployment, tokenizer: Tokenizer) -> LLM:
        """Takes a deployment over that is loaded already."""
        llm = cls.__new__(cls)
        llm._open(deployment, tokenizer)
        return llm

    def _open(self, deployment: Deployment, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._driver = Driver(deployment)
        self._max_model_len = deployment.ready.max_model_len
        self._window = 2 * sum(replica.scheduler.max_num_seqs for replica in deployment.replicas)
        self._numbers = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers all prompts together, in their order; `params` for all, or one for each.

        Raises UserError for a prompt or parameters that cannot be honoured, and for logits that overflow.
        """
        listed = _listed(prompts)
        each = _for_each(params or SamplingParams(), len(listed))
        sequences = [self._sequence(*pair) for pair in zip(listed, each, strict=True)]
        try:
            self._run(deque(sequences))
        finally:
            self._drop_rest()
        return [sequence.result() for sequence in sequences]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, put into words by the model's chat template."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        texts = [self._tokenizer.apply_chat_template(turns) for turns in conversations]  # type: ignore[arg-type]
        return self.generate([self._tokenizer.encode(t, add_special_tokens=False) for t in texts], params)

    def close(self) -> None:
        """Frees the model."""
        self._driver.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, waiting: deque[_Sequence]) -> None:
        """Keeps enough requests in the queue, without filling it."""
        running: dict[str, _Sequence] = {}
        while waiting or running:
            while waiting and len(running) < self._window:
                sequence = waiting.popleft()
                running[sequence.submit.id] = sequence
                self._driver.handle(sequence.submit)
            for output in self._driver.turn():
                sequence = running[output.id]
                sequence.take(output)
                if output.finish_reason is not None:
                    del running[output.id]
                elif sequence.ended:  # at a stop string, of which the engine knows nothing
                    self._driver.handle(Abort([output.id]))

    def _drop_rest(self) -> None:
        self._driver.abort_all()
        while self._driver.busy:
            self._driver.turn()

    def _sequence(self, prompt: Prompt, params: SamplingParams) -> _Sequence:
        text = prompt if isinstance(prompt, str) else None
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        number, self._numbers = self._numbers, self._numbers + 1
        submit = Submit(
            id=str(number),
            prompt=ids,
            max_tokens=self._max_model_len if params.max_tokens is None else params.max_tokens,
            sampling=params.sampling(),
            stop_ids=sorted(
                {*params.stop_token_ids, *(() if params.ignore_eos else self._tokenizer.eos_ids)}
            ),
            min_tokens=params.min_tokens,
        )
        pieces = Pieces(self._tokenizer, params.skip_special_tokens)
        return _Sequence(text, submit, params, pieces)


class _Sequence:
    """One answer as it grows."""

    def __init__(self, prompt: str | None, submit: Submit, params: SamplingParams, pieces: Pieces) -> None:
        self.submit = submit
        self._prompt = prompt
        self._params = params
        self._detokenizer = Detokenizer(
            pieces, params.stops, params.include_stop_str_in_output, params.min_tokens
        )
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._cached = 0
        self._finish_reason = ""
        self._device: DeviceTimes | None = None

    @property
    def ended(self) -> bool:
        """Whether the text is complete; the engine may not know it yet."""
        return bool(self._finish_reason)

    def take(self, output: Output) -> None:
        """Adds news.  Raises UserError for a refusal."""
        if output.finish_reason == FinishReason.ERROR:
            raise UserError(output.error or "the engine refused the request")
        self._device = output.device
        if self.ended:
            return
        self._prompt_logprobs += output.prompt_logprobs
        self._cached = max(self._cached, output.cached)
        text, used = self._detokenizer.feed(self._shown(output))
        self._texts.append(text)
        if self._detokenizer.matched is not None:
            self._finish_reason = FinishReason.STOP.value
        else:
            used = len(output.tokens)
            self._finish_reason = output.finish_reason or ""
            self._texts.append(self._detokenizer.flush() if self.ended else "")
        self._tokens += output.tokens[:used]
        self._logprobs += output.logprobs[:used]

    def result(self) -> RequestOutput:
        """The whole answer."""
        return RequestOutput(
            prompt=self._prompt,
            prompt_token_ids=self.submit.prompt,
            text="".join(self._texts),
            token_ids=self._tokens,
            finish_reason=self._finish_reason,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            cached_tokens=self._cached,
            device=self._device,
        )

    def _shown(self, output: Output) -> list[int]:
        """The tokens whose text counts: not the stop token at the end."""
        ends = (
            output.finish_reason == FinishReason.STOP
            and output.tokens[-1:]
            and not (self._params.include_stop_str_in_output)
        )
        return output.tokens[:-1] if ends and output.tokens[-1] in self.submit.stop_ids else output.tokens


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _for_each(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise UserError(f"{count} prompts, but {len(params)} sampling parameters", "params")
    return list(params)
