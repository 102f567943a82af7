"""Token details beside an answer's text, in vLLM's form: token ids, and the prompt's logprobs."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from corepipe.answers.parts import PromptTokens
from corepipe.engine.messages import TokenLogprobs
from corepipe.serving.api.answering.answers import Strict


class TokenTexts(Protocol):
    """The methods of a tokenizer that answers use."""

    def decode_token(self, token: int, /) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...


class NamedById:
    """Names tokens `token_id:N`, since several may have the same text."""

    def __init__(self, vocabulary: TokenTexts) -> None:
        self._vocabulary = vocabulary

    def decode_token(self, token: int, /) -> str:
        return f"token_id:{token}"

    def token_bytes(self, token: int, /) -> bytes:
        return self._vocabulary.token_bytes(token)


class PromptLogprob(Strict):
    """The logprob of a token at a position of the prompt; `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


class PromptDetails(Strict):
    """Details of a prompt; `prompt_logprobs` are by token id, the prompt's own token first."""

    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


def prompt_fields(prompt: PromptTokens, vocabulary: TokenTexts) -> dict[str, Any]:
    """Returns the fields of `PromptDetails` that were requested."""
    fields: dict[str, Any] = {}
    if prompt.tokens is not None:
        fields["prompt_token_ids"] = prompt.tokens
    if prompt.logprobs is not None:
        fields["prompt_logprobs"] = [entry and _by_id(entry, vocabulary) for entry in prompt.logprobs]
    return fields


def _by_id(entry: TokenLogprobs, vocabulary: TokenTexts) -> dict[str, dict[str, Any]]:
    ranked = {entry.token: (entry.logprob, entry.rank)}
    ranked |= {token: (logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)}
    return {
        str(token): {
            "logprob": logprob,
            "rank": rank,
            "decoded_token": vocabulary.token_bytes(token).decode(errors="replace"),
        }
        for token, (logprob, rank) in ranked.items()
    }
