"""POST /v1/completions: the body, the plans and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from corepipe.answers.parts import Finish, Logprobs
from corepipe.answers.text_answer import Echo
from corepipe.engine.messages import TokenLogprobs
from corepipe.serving.api.answering.answers import (
    ApiFinishReason,
    DeviceTimes,
    PromptDetails,
    Strict,
    TokenTexts,
    Usage,
)
from corepipe.serving.api.answering.endpoint import ChoicesEndpoint
from corepipe.serving.api.answering.generation import GenerationPlan
from corepipe.serving.api.answering.rendering import ChoiceShape
from corepipe.serving.api.answering.texts import Truncation, check_ids, entries
from corepipe.serving.api.bodies.protocol import MAX_CHOICES, MAX_LOGPROBS, NO_LIMIT, GenerationRequest, Limit
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.route import EVENTS, generating

DEFAULT_TOKENS = 16


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(description="text, token ids, or a list of either; prompts times `n` is at most 128"),
    ]
    max_tokens: Annotated[
        Limit | None,
        Meta(description="default 16; must fit the context; -1: the rest of the context; 0 only with `echo`"),
    ] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None, Meta(description="alternatives for each token")
    ] = None
    echo: Annotated[bool, Meta(description="put the prompt before the answer, also in the logprobs")] = False
    best_of: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_CHOICES)] | None, Meta(description="must equal `n`; 0 means null")
    ] = None
    add_special_tokens: Annotated[bool, Meta(description="encode text with special tokens")] = True
    suffix: Annotated[
        str, Meta(description="text that follows the answer; only if the tokenizer has tokens for it")
    ] = ""

    @property
    def prompt_alternatives(self) -> int | None:
        """The most alternatives per prompt token that `echo` or `prompt_logprobs` request, or None."""
        counts = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((count for count in counts if count is not None), default=None)

    def check(self, vocab_size: int, max_num_seqs: int) -> None:
        super().check(vocab_size, max_num_seqs)
        if self.best_of not in (None, 0, self.n):
            raise invalid("best_of is only supported where it equals n.", "best_of", "unsupported_value")
        if self.suffix and self.truncate_prompt_tokens is not None:
            raise invalid("suffix does not go with truncate_prompt_tokens.", "suffix")
        if self.suffix and self.echo and self.logprobs is not None:  # the prompt then holds the suffix, too
            raise invalid("suffix with echo does not go with logprobs: leave them out.", "suffix")


class CompletionLogprobs(Strict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionChoice(PromptDetails, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ApiFinishReason
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class Completion(Strict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    corepipe: DeviceTimes | UnsetType = UNSET


class Completions(ChoicesEndpoint[CompletionRequest]):
    """The endpoint of completions."""

    request = CompletionRequest
    prefix = "cmpl-"
    operation = "text_completion"

    def shape(self, vocabulary: TokenTexts) -> ChoiceShape:
        return CompletionShape(vocabulary)

    async def plan(self, body: CompletionRequest, grammar: str) -> list[GenerationPlan]:
        listed = entries(body.prompt, "prompt")
        if len(listed) * body.n > MAX_CHOICES:
            raise invalid(f"prompts times n is at most {MAX_CHOICES}.", "prompt")
        context = self.service.require_ready().max_model_len
        free = body.max_tokens == NO_LIMIT
        most = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        cut = Truncation.of(body, context, max(most, 1))
        prompts = [await self._prompt(one, body, cut) for one in listed]
        if body.max_tokens == 0 and not body.echo:
            raise invalid("max_tokens must be at least 1, or 0 with echo: true.", "max_tokens")
        return [
            GenerationPlan(
                prompt=ids,
                source="prompt",
                max_tokens=None if free else body.max_tokens,
                default_tokens=None if free else DEFAULT_TOKENS,
                logprobs=body.logprobs,
                prompt_logprobs=body.prompt_alternatives,
                echo=Echo(text, body.logprobs) if body.echo else None,
                grammar=grammar,
            )
            for ids, text in prompts
        ]

    async def _prompt(
        self, prompt: str | list[int], body: CompletionRequest, cut: Truncation | None
    ) -> tuple[list[int], str]:
        """Returns the token ids of a prompt, and the text that an echo repeats."""
        service, tokenizer = self.service, self.service.tokenizer
        most, special = service.require_ready().max_model_len, body.add_special_tokens
        if isinstance(prompt, str):
            text = self._filled(prompt, body.suffix)
            readable = most if cut is None else cut.readable
            ids = await service.encode(text, "prompt", readable, lambda one: tokenizer.encode(one, special))
        else:
            self._check_ids(prompt, body.suffix)
            ids = prompt
        if not prompt or not ids:
            raise invalid("prompt must not be empty.", "prompt")
        if cut is not None:
            ids = tokenizer.cut(ids, cut.most, cut.side, framed=special and isinstance(prompt, str))
        if not body.echo or len(ids) > most:  # too long: refused later
            return ids, ""
        if isinstance(prompt, str) and cut is None:
            return ids, prompt
        return ids, tokenizer.decode(ids, body.skip_special_tokens)

    def _filled(self, prompt: str, suffix: str) -> str:
        """Returns a fill-in-the-middle prompt if there is a suffix, else the prompt itself."""
        if not suffix:
            return prompt
        marks = self.service.tokenizer.fill_in_the_middle
        if marks is None:
            message = "suffix: this model has no tokens to fill in the middle with."
            raise invalid(message, "suffix", "unsupported_parameter")
        before, between, after = marks
        return f"{before}{prompt}{between}{suffix}{after}"

    def _check_ids(self, ids: Sequence[int], suffix: str) -> None:
        if suffix:
            raise invalid("suffix needs a prompt of text.", "suffix", "unsupported_value")
        check_ids(ids, self.service.vocab_size, "prompt")


class CompletionShape:
    """The form of choices in a `text_completion`."""

    whole_kind = chunk_kind = "text_completion"
    one_prompt = False

    def __init__(self, vocabulary: TokenTexts) -> None:
        self._vocabulary = vocabulary

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        return None

    def piece(self, index: int) -> tuple[bytes, bytes]:
        before = b'{"index":%d,"text":' % index
        return before, b',"logprobs":null,"finish_reason":null,"stop_reason":null}'

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, finish: Finish | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish and finish.finish_reason,
            "stop_reason": finish and finish.stop_reason,
        }

    def whole(self, index: int, text: str, logprobs: Logprobs | None, finish: Finish) -> dict[str, Any]:
        return self.chunk(index, text, logprobs, finish)

    def _logprobs(self, logprobs: Logprobs) -> dict[str, Any]:
        name = self._vocabulary.decode_token
        return {
            "tokens": [name(token) for token in logprobs.tokens],
            "token_logprobs": [entry and entry.logprob for entry in logprobs.entries],
            "top_logprobs": [entry and self._top(entry) for entry in logprobs.entries],
            "text_offset": list(logprobs.offsets),
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        name = self._vocabulary.decode_token
        chosen = {name(entry.token): entry.logprob}
        return {name(token): value for token, value in entry.top} | chosen


ROUTE = generating(
    "/v1/completions",
    "Text completion",
    Completions,
    "`n`, several prompts, `echo`, streams",
    request=CompletionRequest,
    answer=Completion,
    others=(EVENTS,),
)
