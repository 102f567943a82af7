"""POST /v1/completions: its body, its plan, its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from corepipe.serving.api.http_errors import invalid
from corepipe.serving.api.protocol import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    NEUTRAL_EVERYWHERE,
    Count,
    GenerationRequest,
    Neutral,
)
from corepipe.serving.api.routes.answers import DeviceTimes, FinishReason, Strict, Usage
from corepipe.serving.api.routes.endpoint import Endpoint
from corepipe.serving.api.routes.generation import Plan
from corepipe.serving.api.routes.rendering import ChoicesRenderer, Envelope, Renderer, Vocabulary
from corepipe.serving.api.routes.route import EVENTS, NO_MODEL, Route
from corepipe.serving.api.routes.service import Service
from corepipe.serving.messages import TokenLogprobs
from corepipe.serving.parts import Finish, Logprobs

DEFAULT_TOKENS = 16


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(description="text, token ids, or a list of either; prompts times `n` is at most 128"),
    ]
    max_tokens: Annotated[
        Count | None, Meta(description="default 16; must fit the context; 0 only with `echo`")
    ] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None, Meta(description="alternatives for each token")
    ] = None
    echo: Annotated[bool, Meta(description="prompt before the answer, with its logprobs too")] = False
    best_of: Annotated[int | None, Meta(description="only if equal to `n`")] = None
    add_special_tokens: Annotated[bool, Meta(description="encode text with special tokens")] = True

    def check(self, vocab_size: int, max_num_seqs: int) -> None:
        super().check(vocab_size, max_num_seqs)
        if self.best_of not in (None, self.n):
            raise invalid("best_of is only supported where it equals n.", "best_of", "unsupported_value")


NEUTRAL_COMPLETION: Mapping[str, Neutral] = {**NEUTRAL_EVERYWHERE, "suffix": Neutral(("",))}


class CompletionLogprobs(Strict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionChoice(Strict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


class Completion(Strict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    corepipe: DeviceTimes | UnsetType = UNSET


class Completions(Endpoint[CompletionRequest]):
    """The endpoint."""

    request = CompletionRequest
    neutral = NEUTRAL_COMPLETION
    prefix = "cmpl"
    operation = "text_completion"

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._shape = CompletionShape(service.tokenizer)

    def renderer(self, body: CompletionRequest, envelope: Envelope) -> Renderer:
        return ChoicesRenderer(self._shape, envelope, usage_chunk=body.usage_chunk)

    async def plan(self, body: CompletionRequest) -> list[Plan]:
        listed = prompt_list(body.prompt)
        if len(listed) * body.n > MAX_CHOICES:
            raise invalid(f"prompts times n is at most {MAX_CHOICES}.", "prompt")
        prompts = [await self._prompt(one, body) for one in listed]
        if body.max_tokens == 0 and not body.echo:
            raise invalid("max_tokens must be at least 1, or 0 with echo: true.", "max_tokens")
        return [
            Plan(
                prompt=ids,
                source="prompt",
                max_tokens=body.max_tokens,
                default_tokens=DEFAULT_TOKENS,
                logprobs=body.logprobs,
                prompt_logprobs=body.logprobs if body.echo else None,
                echo=text if body.echo else None,
            )
            for ids, text in prompts
        ]

    async def _prompt(self, prompt: str | Sequence[int], body: CompletionRequest) -> tuple[list[int], str]:
        """Its token ids, and the text that an echo repeats."""
        service = self.service
        most = service.require_ready().max_model_len
        if isinstance(prompt, str):
            special = body.add_special_tokens
            encode = service.tokenizer.encode
            ids = await service.encode(prompt, "prompt", most, lambda text: encode(text, special))
            text = prompt
        else:
            ids = list(prompt)
            self._check_ids(ids)
            if len(ids) > most:
                return ids, ""  # refused further on
            text = service.tokenizer.decode(ids, body.skip_special_tokens) if body.echo else ""
        if not prompt or not ids:
            raise invalid("prompt must not be empty.", "prompt")
        return ids, text

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = self.service.tokenizer.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            raise invalid(f"prompt: token ids must be from 0 to {size - 1}.", "prompt")


def prompt_list(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts in any of the four shapes: text, ids, a list of either.  Raises ApiError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt must not be empty.", "prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [ids]
    several = [item for item in prompt if not isinstance(item, int)]
    if len(several) != len(prompt) or len({type(item) for item in several}) > 1:
        raise invalid("prompt mixes texts, token ids and lists of them.", "prompt", "invalid_type")
    return several


class CompletionShape:
    """`text_completion`."""

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, vocabulary: Vocabulary) -> None:
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


ROUTE = Route(
    "POST",
    "/v1/completions",
    "Text completion",
    Completions,
    "`n`, several prompts, `echo`, streams",
    request=CompletionRequest,
    neutral=NEUTRAL_COMPLETION,
    answer=Completion,
    statuses=NO_MODEL,
    others=(EVENTS,),
    generates=True,
)
