"""The engine as a library, in this process: `LLM(model).generate(prompts)` or `.embed(texts)`, no threads."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from msgspec.structs import replace

from corepipe.answers.banned_tokens import require_some, spelled
from corepipe.answers.chat_variables import begins_turn, checked_variables
from corepipe.answers.parsing.choose import AUTO
from corepipe.answers.parsing.tools import offered_by
from corepipe.answers.parts import Pieces
from corepipe.answers.text_answer import TextAnswer
from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig, validated
from corepipe.engine.flag import flag_of
from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.driver import Driver
from corepipe.engine.lora import AdapterRef
from corepipe.engine.messages import Abort, Submit
from corepipe.engine.params import SamplingParams
from corepipe.errors import UserError, shown
from corepipe.library.adapters import NamedAdapters
from corepipe.library.answers import GrowingAnswer, RequestOutput
from corepipe.library.images import Picture
from corepipe.library.prompts import (
    ChatPrompts,
    Conversation,
    PreparedPrompt,
    Prompt,
    Rendering,
    listed,
    several,
)
from corepipe.library.texts import (
    ClassificationOutput,
    EmbeddingOutput,
    EncodedText,
    ScoreOutput,
    Texts,
    as_many,
)
from corepipe.models import hub, registry
from corepipe.models.tasks import Task, TaskInfo
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.structured.grammars import grammar_of
from corepipe.structured.spelling import Spelling

OPTIONS: Mapping[str, str] = MappingProxyType(
    {flag_of(EngineConfig, name).removeprefix("--"): name for name in EngineConfig.model_fields}
)
"""The options of LLM, by the flags of commands that set the same fields."""
FLAG = re.compile(r"--([a-z][a-z-]*[a-z])(?: ([\w./-]*\d(?:[\w./-]*\w)?))?")
"""A flag in a message, with its value where that has a digit, as numbers and most names have."""


class LLM:
    """A model, loaded and ready; use it in a `with` statement, or `close` it.

    `options` are the fields of EngineConfig.  The model's files give its formats of tool calls and reasoning,
    unless the parsers are named.  Raises UserError where the model or an option is at fault.
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
            if config.max_batch_delay:
                raise UserError(
                    "max_batch_delay: the library gets all texts at once and waits for none; leave it out",
                    "max_batch_delay",
                )
            if config.kv_events_config is not None:
                raise UserError(
                    "kv_events_config: the library publishes no KV events; leave it out", "kv_events_config"
                )
            if config.lora_dir is not None:
                raise UserError("lora_dir: the library loads nothing by itself; use load_adapter", "lora_dir")
            loaded = registry.load(hub.resolve(config.model))
            tokenizer, task = loaded.tokenizer(), loaded.task(config.task)
            chats = ChatPrompts(tokenizer, (tool_call_parser, reasoning_parser))
            self._open(assemble(config, lambda _what, _done: None), tokenizer, chats, task)
            try:
                self._adapters = NamedAdapters(self._driver, config.lora_modules)
            except UserError:
                self.close()
                raise

    @classmethod
    def of(cls, deployment: Deployment, tokenizer: Tokenizer, task: TaskInfo | None = None) -> LLM:
        """Makes an LLM of a loaded deployment, which it owns from then on.  task: None for generation."""
        llm = cls.__new__(cls)
        llm._open(deployment, tokenizer, ChatPrompts(tokenizer), task)
        return llm

    def _open(
        self, deployment: Deployment, tokenizer: Tokenizer, chats: ChatPrompts, task: TaskInfo | None
    ) -> None:
        longest = deployment.ready.max_model_len
        task = task or TaskInfo(Task.GENERATE, longest, deployment.vocab_size)
        self._texts = Texts(task, tokenizer, longest)
        self._tokenizer = tokenizer
        self._chats = chats
        self._driver = Driver(deployment)
        self._adapters = NamedAdapters(self._driver)
        self._max_model_len = deployment.ready.max_model_len
        self._window = 2 * sum(replica.scheduler.max_num_seqs for replica in deployment.replicas)
        self._numbers = 0
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Answers all prompts together, in their order; `params` for all, or one for each.  adapter: the name
        of a LoRA adapter that is loaded; None: the model as it is.

        Raises UserError for a prompt, parameters or a constraint that cannot be honoured, for logits that
        overflow, and after `close`.
        """
        self._check_open()
        self._texts.require("generate", Task.GENERATE)
        asked = [PreparedPrompt(prompt) for prompt in listed(prompts)]
        return self._answers(asked, params, self._adapters.find(adapter))

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Loads the LoRA adapter in a directory, under a name for calls; one that has the name is replaced.

        Needs `enable_lora`.  Raises UserError for files that cannot be used, and where too many are loaded.
        """
        self._check_open()
        with _options_for_flags():
            self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Frees a LoRA adapter.  Raises UserError for a name that is not loaded."""
        self._check_open()
        self._adapters.unload(name)

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        adapter: str | None = None,
    ) -> list[EmbeddingOutput]:
        """Returns a vector of each text, or list of token ids, in their order.

        A text that is too long is cut at its end, as sentence-transformers does.  dimensions: the length to
        which vectors are cut, for models that are made for it.  prompt_name: the model's prompt to put before
        each text, instead of its default one.  adapter: see `generate`.

        Raises UserError for a model that does not embed, for what is not a text, and after `close`.
        """
        self._check_open()
        self._texts.require("embed", Task.EMBED)
        self._texts.check_dimensions(dimensions)
        read = self._encoded(self._texts.read(texts, prompt_name), self._adapters.find(adapter))
        return [self._texts.embedding(text, dimensions) for text in read]

    def classify(
        self, inputs: Prompt | Picture | Sequence[Prompt | Picture], *, use_activation: bool = True
    ) -> list[ClassificationOutput]:
        """Returns the classes of each text, or of each of its tokens, as probabilities or, with
        `use_activation=False`, as the model computes them.  Models that read images take a path, the bytes of
        a file, or a Pillow image.  Raises UserError as `embed` does."""
        self._check_open()
        self._texts.require("classify", Task.CLASSIFY)
        read = self._encoded(self._texts.read_classified(inputs))
        return [self._texts.classification(text, use_activation=use_activation) for text in read]

    def score(self, first: str | Sequence[str], second: str | Sequence[str]) -> list[ScoreOutput]:
        """Scores the first text with each of the second ones, or each of the first with its second.

        A cross-encoder reads both texts as one; for a model that embeds the score is the cosine of their
        vectors. Raises UserError as `embed` does.
        """
        self._check_open()
        self._texts.require("score", Task.SCORE, Task.EMBED)
        if self._texts.task is Task.SCORE:
            return [self._texts.score(pair) for pair in self._encoded(self._texts.read_pairs(first, second))]
        firsts, seconds = as_many(first, second)
        both = self._encoded(self._texts.read(firsts) + self._texts.read(seconds))
        return self._texts.similarities(both[: len(firsts)], both[len(firsts) :])

    def _encoded(self, texts: list[EncodedText], adapter: AdapterRef | None = None) -> list[EncodedText]:
        with _options_for_flags():
            try:
                self._run(deque(texts), adapter)
            finally:
                self._drop_rest()
        return texts

    def _answers(
        self,
        asked: Sequence[PreparedPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: AdapterRef | None,
    ) -> list[RequestOutput]:
        each = _for_each(SamplingParams() if params is None else params, len(asked))
        with _options_for_flags():
            grammars = _grammars(each, lambda: self._chats.spelling)
            sequences = [
                self._sequence(prompt, one, grammars[id(one)])
                for prompt, one in zip(asked, each, strict=True)
            ]
            try:
                self._run(deque(sequences), adapter)
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
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, made into prompts by the model's chat template.

        Messages are encoded as text, also special tokens that they spell (`<|im_end|>`), unless these are
        allowed. `tools`, `tool_choice` and `parallel_tool_calls` are those of the OpenAI API.  chat_template:
        replaces the model's.  The prompt ends where the assistant's turn begins, or
        (`continue_final_message`) within the last message, or (`add_generation_prompt=False`) after it.
        chat_template_kwargs: variables for the template.  adapter: see `generate`.
        """
        self._check_open()
        self._texts.require("chat", Task.GENERATE)
        chats = self._chats if chat_template is None else self._chats.with_template(chat_template)
        rendering = Rendering(
            begins_turn(add_generation_prompt, continue_final_message),
            continue_final_message,
            checked_variables(chat_template_kwargs or {}),
            allow_special_tokens_in_text,
        )
        offer = offered_by(tools, tool_choice, parallel=parallel_tool_calls)
        return self._answers(chats.prepare(messages, rendering, offer), params, self._adapters.find(adapter))

    def close(self) -> None:
        """Frees the model; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._texts.close()
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

    def _run(self, waiting: deque[GrowingAnswer] | deque[EncodedText], adapter: AdapterRef | None) -> None:
        """Runs requests, with enough of them in the engine's queue but without filling it."""
        running: dict[str, GrowingAnswer | EncodedText] = {}
        while waiting or running:
            while waiting and len(running) < self._window:
                sequence = waiting.popleft()
                running[sequence.submit.id] = sequence
                submit = sequence.submit
                self._driver.handle(submit if adapter is None else replace(submit, adapter=adapter))
            for output in self._driver.turn():
                sequence = running[output.id]
                sequence.take(output)
                if output.finish_reason is not None:
                    del running[output.id]
                elif sequence.ended:  # at a stop string, which the engine does not know
                    self._driver.handle(Abort([output.id]))
        self._driver.forget_stats()

    def _drop_rest(self) -> None:
        self._driver.abort_all()
        while self._driver.busy:
            self._driver.turn()

    def _sequence(self, asked: PreparedPrompt, params: SamplingParams, wanted: str) -> GrowingAnswer:
        prompt, grammar = asked.prompt, asked.grammar(self._tokenizer.added_tokens, wanted)
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
            speculation=params.speculation,
        )
        marks = asked.reading.marks(self._tokenizer.added_tokens) if asked.reading else frozenset[int]()
        pieces = Pieces(self._tokenizer, params.skip_special_tokens, keep=marks)
        answer = TextAnswer(0, submit, params, pieces, reading=asked.reading)
        return GrowingAnswer(text, require_some(submit), answer)


def _for_each(params: object, count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if not several(params) or not all(isinstance(one, SamplingParams) for one in params):
        raise UserError(
            f"params must be SamplingParams, or a list of them, not {shown(repr(params))}", "params"
        )
    if len(params) != count:
        raise UserError(f"{count} prompts, but {len(params)} sampling parameters", "params")
    return list(params)


def _grammars(params: Sequence[SamplingParams], spelling: Callable[[], Spelling]) -> dict[int, str]:
    """Returns the grammar of each parameter set, by its identity; "" where it has no constraint."""
    grammars: dict[int, str] = {}
    for one in params:
        if id(one) not in grammars:
            constraint = one.constraint()
            grammars[id(one)] = "" if constraint is None else grammar_of(constraint, spelling())
    return grammars


def _check_names(options: Mapping[str, object]) -> None:
    for name in options:
        if name not in EngineConfig.model_fields:
            near = get_close_matches(name, EngineConfig.model_fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EngineConfig.model_fields)}"
            raise UserError(f"{name} is not an option of LLM; {hint}", name)


@contextmanager
def _options_for_flags() -> Iterator[None]:
    """Replaces flags of the command line in errors of the engine by options of LLM."""
    try:
        yield
    except UserError as error:
        raise UserError(FLAG.sub(_option, error.message), error.param) from error


def _option(flag: re.Match[str]) -> str:
    name, value = OPTIONS.get(flag[1]), flag[2]
    if name is None:
        return flag[0]
    return name if value is None else f"{name}={value if value.isdigit() else repr(value)}"
