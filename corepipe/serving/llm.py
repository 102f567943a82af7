"""The engine as a library: `LLM(model).generate(prompts)`, in this process and without a thread."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeGuard

from corepipe.errors import UserError, shown
from corepipe.models import hub, registry
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.scheduler.request import FinishReason
from corepipe.serving.bans import require_some, spelled
from corepipe.serving.chat_variables import checked_variables
from corepipe.serving.config import EngineConfig, validated
from corepipe.serving.detokenizer import Pieces
from corepipe.serving.engine.assembly import assemble
from corepipe.serving.engine.deployment import Deployment
from corepipe.serving.engine.driver import Driver
from corepipe.serving.grammars import grammar_of, schema_in
from corepipe.serving.messages import Abort, DeviceTimes, Output, Submit, TokenLogprobs
from corepipe.serving.params import SamplingParams
from corepipe.serving.parsing.choose import AUTO, choose
from corepipe.serving.parsing.forcing import answer_grammar, schemas_of
from corepipe.serving.parsing.prompt import TAIL_TOKENS, check_callable, reading_of, template_input
from corepipe.serving.parsing.reading import Reading
from corepipe.serving.parsing.tools import Offer, offered_by
from corepipe.serving.parts import (
    Call,
    Said,
    Text,
    joined_calls,
    joined_logprobs,
    joined_reasoning,
    joined_text,
)
from corepipe.serving.text_answer import TextAnswer

Prompt = str | list[int]
"""Text, or token ids."""
Conversation = Sequence[Mapping[str, object]]
"""Messages of a chat: {"role": ..., "content": ...}."""

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "dtype": "format",
        "kv-cache-memory-bytes": "kv_cache_bytes",
        "enable-prefix-caching": "prefix_cache",
        "max-num-queued-reqs": "max_queued_requests",
        "max-num-queued-tokens": "max_queued_tokens",
    }
)
"""The commands' flags whose option has another name."""
FLAG = re.compile(r"--([a-z][a-z-]*[a-z])(?: ([\w./-]*\d(?:[\w./-]*\w)?))?")
"""A flag in a message, and what it is given where that has a digit, as numbers and most names have."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """An answer.

    finish_reason: "stop" (a stop token or string), "length" or "tool_calls".  logprobs: one entry for each
    token id, prompt_logprobs one for each prompt token after the first; empty where not asked for.  device:
    what the emulated device would have taken.  tool_calls, reasoning: of a chat.
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
    tool_calls: list[Call] = field(default_factory=list)
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt, and how its answer is read."""

    prompt: Prompt
    reading: Reading | None = None
    offer: Offer | None = None


class LLM:
    """A model, loaded and ready; use it in a `with` statement, or `close` it.

    `options` are the fields of EngineConfig.  How the model writes tool calls and reasoning is what its files
    say, unless the parsers are named.  Raises UserError where the model or an option is at fault.
    """

    def __init__(
        self,
        model: str | Path = hub.DEFAULT_MODEL,
        *,
        tool_call_parser: str = AUTO,
        reasoning_parser: str = AUTO,
        **options: object,
    ) -> None:
        with _options_for_flags():
            _check_names(options)
            path = str(model) if isinstance(model, Path) else model
            config = validated(EngineConfig, {"model": path, **options})
            tokenizer = registry.load(hub.resolve(config.model)).tokenizer()
            parsers = (tool_call_parser, reasoning_parser)
            choose(tokenizer, *parsers)  # before anything is loaded
            self._open(assemble(config, lambda _what, _done: None), tokenizer, parsers)

    @classmethod
    def of(cls, deployment: Deployment, tokenizer: Tokenizer) -> LLM:
        """Takes a deployment over that is loaded already."""
        llm = cls.__new__(cls)
        llm._open(deployment, tokenizer)
        return llm

    def _open(
        self, deployment: Deployment, tokenizer: Tokenizer, parsers: tuple[str, str] = (AUTO, AUTO)
    ) -> None:
        self._tokenizer = tokenizer
        self._parsers = parsers
        self._dialect = choose(tokenizer, *parsers)
        self._driver = Driver(deployment)
        self._max_model_len = deployment.ready.max_model_len
        self._window = 2 * sum(replica.scheduler.max_num_seqs for replica in deployment.replicas)
        self._numbers = 0
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers all prompts together, in their order; `params` for all, or one for each.

        Raises UserError for a prompt, parameters or a constraint that cannot be honoured, for logits that
        overflow, and after `close`.
        """
        self._check_open()
        return self._answers([_Asked(prompt) for prompt in _listed(prompts)], params)

    def _answers(
        self, listed: Sequence[_Asked], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[RequestOutput]:
        each = _for_each(SamplingParams() if params is None else params, len(listed))
        with _options_for_flags():
            grammars = _grammars(each)
            sequences = [
                self._sequence(asked, one, grammars[id(one)]) for asked, one in zip(listed, each, strict=True)
            ]
            try:
                self._run(deque(sequences))
            finally:
                self._drop_rest()
        return [sequence.result() for sequence in sequences]

    def chat(  # noqa: PLR0913 -- as many as there are fields of a chat
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        allow_special_tokens_in_text: bool = False,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, put into words by the model's chat template.

        What the messages say is encoded as text, special tokens that they spell (`<|im_end|>`) too, unless
        these are allowed.  `tools`, `tool_choice` and `parallel_tool_calls` are those of the OpenAI API.
        chat_template: in place of the model's.  The prompt ends where the assistant begins to speak, or
        (`continue_final_message`) within the last message, or (`add_generation_prompt=False`) after it.
        chat_template_kwargs: variables for the template.
        """
        self._check_open()
        tokenizer, dialect = self._tokenizer, self._dialect
        if chat_template is not None:
            tokenizer = tokenizer.with_chat_template(chat_template)
            dialect = choose(tokenizer, *self._parsers)
        if continue_final_message and add_generation_prompt:
            raise UserError(
                "continue_final_message goes on with the last message, and add_generation_prompt begins "
                "another: give one of them",
                "continue_final_message",
            )
        offer = offered_by(tools, tool_choice, parallel=parallel_tool_calls)
        check_callable(dialect, offer)
        asked_for = schemas_of(dialect.calls, offer, constrained=_any_constrained(params))
        schemas = {name: schema_in(grammar_of(one)) for name, one in asked_for}
        narrowed = None if offer is None else offer.narrowed(schemas)
        begins = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        given = checked_variables(chat_template_kwargs or {})

        def asked(messages: Conversation) -> _Asked:
            turns, told = template_input(messages, offer, dialect)
            render = tokenizer.apply_chat_template if allow_special_tokens_in_text else tokenizer.render_chat
            text = render(turns, begins, continue_final_message, **{**given, **told})
            encode = tokenizer.encode if allow_special_tokens_in_text else tokenizer.encode_chat
            prompt = encode(text, add_special_tokens=False)
            tail = tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
            return _Asked(prompt, reading_of(dialect, offer, tail), narrowed)

        return self._answers([asked(turns) for turns in _conversations(messages)], params)

    def close(self) -> None:
        """Frees the model; once is enough."""
        if not self._closed:
            self._closed = True
            self._driver.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("this LLM is closed and its model freed: make another one")

    def __enter__(self) -> LLM:
        self._check_open()
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
        self._driver.stats()  # which grow until they are read, and here nobody reads them

    def _drop_rest(self) -> None:
        self._driver.abort_all()
        while self._driver.busy:
            self._driver.turn()

    def _sequence(self, asked: _Asked, params: SamplingParams, grammar: str) -> _Sequence:
        prompt = asked.prompt
        grammar = answer_grammar(asked.reading, asked.offer, self._tokenizer.added_tokens, grammar)
        text = prompt if isinstance(prompt, str) else None
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else [int(i) for i in prompt]
        number, self._numbers = self._numbers, self._numbers + 1
        submit = Submit(
            id=str(number),
            prompt=ids,
            max_tokens=self._max_model_len if params.max_tokens is None else params.max_tokens,
            sampling=params.sampling(),
            stop_ids=sorted(
                {
                    *params.stop_token_ids,
                    *(() if params.ignore_eos and not grammar else self._tokenizer.eos_ids),
                }
            ),
            min_tokens=params.min_tokens,
            bad_words=spelled(params.bad_words, self._tokenizer),
            grammar=grammar,
        )
        marks = asked.reading.marks(self._tokenizer.added_tokens) if asked.reading else frozenset[int]()
        pieces = Pieces(self._tokenizer, params.skip_special_tokens, keep=marks)
        answer = TextAnswer(0, submit, params, pieces, reading=asked.reading)
        return _Sequence(text, require_some(submit), answer)


class _Sequence:
    """One answer as it grows."""

    def __init__(self, prompt: str | None, submit: Submit, answer: TextAnswer) -> None:
        self.submit = submit
        self._prompt = prompt
        self._answer = answer
        self._parts: list[Said] = []
        self._tokens: list[int] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._device: DeviceTimes | None = None

    @property
    def ended(self) -> bool:
        """Whether the text is complete; the engine may not know it yet."""
        return self._answer.finish is not None

    def take(self, output: Output) -> None:
        """Adds news.  Raises UserError for a refusal."""
        if output.finish_reason == FinishReason.ERROR:
            raise UserError(output.error or "the engine refused the request")
        self._device = output.device
        if self.ended:
            return
        self._parts += self._answer.take(output)
        self._tokens += output.tokens[: self._answer.generated - len(self._tokens)]
        self._prompt_logprobs += output.prompt_logprobs

    def result(self) -> RequestOutput:
        """The whole answer."""
        texts = [part for part in self._parts if isinstance(part, Text)]
        logprobs, finish = joined_logprobs(texts), self._answer.finish
        return RequestOutput(
            prompt=self._prompt,
            prompt_token_ids=self.submit.prompt,
            text=joined_text(texts),
            token_ids=self._tokens,
            finish_reason=finish.finish_reason if finish else "",
            logprobs=[entry for entry in logprobs.entries if entry] if logprobs else [],
            prompt_logprobs=self._prompt_logprobs,
            cached_tokens=self._answer.cached,
            device=self._device,
            tool_calls=joined_calls(self._parts),
            reasoning=joined_reasoning(self._parts),
        )


def _listed(prompts: object) -> list[Prompt]:
    """A single prompt as a list of one.  Raises UserError for what is no prompt."""
    if isinstance(prompts, str) or _are_ids(prompts):
        return [prompts]  # type: ignore[list-item]
    if not _several(prompts) or not all(
        isinstance(one, str) or one == [] or _are_ids(one) for one in prompts
    ):
        raise UserError(
            f"prompts must be a text, a list of token ids, or a list of these, not {shown(repr(prompts))}",
            "prompts",
        )
    return list(prompts)


def _several(values: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)


def _are_ids(prompt: object) -> bool:
    return (
        _several(prompt)
        and bool(prompt)
        and all(isinstance(token, Integral) and not isinstance(token, bool) for token in prompt)
    )


def _conversations(messages: object) -> list[Conversation]:
    """A single conversation as a list of one.  Raises UserError for what is none."""
    if _several(messages):
        listed = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        if all(_several(turns) and all(isinstance(turn, Mapping) for turn in turns) for turns in listed):
            return listed
    raise UserError(
        'messages must be a list of {"role": ..., "content": ...}, or several, '
        f"not {shown(repr(messages))}",
        "messages",
    )


def _for_each(params: object, count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if not _several(params) or not all(isinstance(one, SamplingParams) for one in params):
        raise UserError(
            f"params must be SamplingParams, or a list of them, not {shown(repr(params))}", "params"
        )
    if len(params) != count:
        raise UserError(f"{count} prompts, but {len(params)} sampling parameters", "params")
    return list(params)


def _any_constrained(params: object) -> bool:
    each = params if _several(params) else [params]
    return any(isinstance(one, SamplingParams) and one.structured_outputs is not None for one in each)


def _grammars(params: Sequence[SamplingParams]) -> dict[int, str]:
    """What each holds its answers to, by its identity; empty where that is nothing."""
    grammars: dict[int, str] = {}
    for one in params:
        if id(one) not in grammars:
            constraint = one.constraint()
            grammars[id(one)] = "" if constraint is None else grammar_of(constraint)
    return grammars


def _check_names(options: Mapping[str, object]) -> None:
    for name in options:
        if name not in EngineConfig.model_fields:
            near = get_close_matches(name, EngineConfig.model_fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EngineConfig.model_fields)}"
            raise UserError(f"{name} is no option of LLM; {hint}", name)


@contextmanager
def _options_for_flags() -> Iterator[None]:
    """What the engine says of flags of the command line is said of options."""
    try:
        yield
    except UserError as error:
        raise UserError(FLAG.sub(_option, error.message), error.param) from error


def _option(flag: re.Match[str]) -> str:
    name, value = OPTIONS.get(flag[1], flag[1].replace("-", "_")), flag[2]
    if name not in EngineConfig.model_fields:
        return flag[0]
    return name if value is None else f"{name}={value if value.isdigit() else repr(value)}"
