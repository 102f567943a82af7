"""Requests of `Submit` messages: a message that could harm the executor or the scheduler is refused here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corepipe.engine.batch.masks import GrammarMatcher, Mask, mask_of
from corepipe.engine.messages import Started, Submit
from corepipe.engine.sampling_parameters import FLOAT32_MAX, TokenSampling, bounds_of
from corepipe.scheduler.request import Request, Status

GENERATE = "generate"
"""The task of an engine that generates answers; with the others it makes something else of a text."""

NO_ADAPTER = -1
"""The slot of requests that are computed by the model as it is."""

_BOUNDS = {name: bounds for name, bounds in bounds_of(TokenSampling).items() if name != "seed"}
"""Bounds by parameter; a seed may be any number: it counts modulo 2**64."""


@dataclass(slots=True, eq=False)
class SampledRequest(Request):
    """A request whose tokens are drawn: as `sampling` says, from `seed` and the position alone, from the
    tokens that its `grammar` allows, if it has one.

    bad_words: sequences of tokens that the answer must not contain; allowed: the only tokens that it may
    contain. constraint: the state of the grammar after the answer so far; None before it is compiled.
    prediction: tokens that the answer may contain, for speed alone. speculation: whether drafts of the answer
    may be computed. second: where the second text of a pair begins in the prompt; 0: there is one text.
    image: see `Submit`. adapter: the slot of its LoRA adapter; NO_ADAPTER: it has none.
    """

    sampling: TokenSampling = field(kw_only=True)
    seed: int = field(kw_only=True)
    bad_words: Sequence[Sequence[int]] = field(default=(), kw_only=True)
    allowed: Mask | None = field(default=None, kw_only=True)
    grammar: str = field(default="", kw_only=True)
    prediction: Sequence[int] = field(default=(), kw_only=True)
    speculation: bool = field(default=True, kw_only=True)
    second: int = field(default=0, kw_only=True)
    image: bytes = field(default=b"", kw_only=True)
    adapter: int = field(default=NO_ADAPTER, kw_only=True)
    constraint: GrammarMatcher | None = field(default=None, init=False)
    announced: bool = field(default=False, init=False)
    """Set when its server knows that something is computed for it."""

    @property
    def masked(self) -> bool:
        """True where its tokens are drawn under a mask."""
        return bool(self.grammar) or self.allowed is not None


def to_request(
    submit: Submit, arrival: float, seed: int, vocab_size: int, max_model_len: int, task: str = GENERATE
) -> SampledRequest:
    """Makes the scheduler's request. `max_tokens` is cut to what fits into `max_model_len`.

    A request that is replayed is a preempted one: it has been admitted before, and its known tokens are
    computed anew. seed: of the draws, where the request brings none.

    Raises ValueError for a prompt that is empty, too long or has tokens outside the vocabulary, for sampling
    parameters that no sampler can follow, and for what an engine of this `task` does not do.
    """
    _check_task(submit, task)
    _check_prompt(submit.prompt, vocab_size, max_model_len, answered=task == GENERATE)
    _check_generated(submit, vocab_size, max_model_len)
    allowed = submit.sampling.allowed_token_ids if submit.max_tokens else None
    if not all(0 <= token < vocab_size for token in submit.prediction):
        raise ValueError(f"prediction holds a token outside the vocabulary of {vocab_size}")
    if submit.max_tokens:  # otherwise nothing is drawn
        _check_sampling(submit.sampling, vocab_size)
        _check_bad_words(submit.bad_words, vocab_size)
    request = SampledRequest(
        id=submit.id,
        prompt=submit.prompt,
        max_tokens=min(submit.max_tokens, max_model_len - len(submit.prompt)),
        arrival=arrival,
        priority=submit.priority,
        stop_ids=frozenset(token for token in submit.stop_ids if 0 <= token < vocab_size),
        min_tokens=submit.min_tokens,
        owner=submit.owner,
        cache_salt=submit.cache_salt,
        told_salt=submit.told_salt,
        adapter_key="" if submit.adapter is None else submit.adapter.digest,
        adapter_name="" if submit.adapter is None else submit.adapter.name,
        prompt_logits=submit.sampling.prompt_logprobs is not None,
        sampling=submit.sampling,
        seed=seed if submit.sampling.seed is None else submit.sampling.seed,
        bad_words=submit.bad_words,
        allowed=None if allowed is None else mask_of(allowed, vocab_size),
        grammar=submit.grammar,
        prediction=submit.prediction if submit.max_tokens else (),
        speculation=submit.speculation,
        second=submit.second,
        image=submit.image,
    )
    if submit.replay:
        request.status = Status.PREEMPTED
    request.extend(submit.generated)
    return request


def _check_task(submit: Submit, task: str) -> None:
    if task == GENERATE:
        if submit.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {submit.max_tokens}")
        return
    if submit.max_tokens != 0 or submit.grammar:
        raise ValueError(f"this engine generates nothing (task: {task}): max_tokens must be 0")
    if not 0 <= submit.second <= len(submit.prompt):
        raise ValueError(f"second must be an index in the prompt, not {submit.second}")


def _check_prompt(prompt: list[int], vocab_size: int, max_model_len: int, *, answered: bool) -> None:
    if not prompt:
        raise ValueError("the prompt is empty")
    most, beside = (max_model_len - 1, "with one token of answer ") if answered else (max_model_len, "")
    if len(prompt) > most:
        raise ValueError(f"the prompt has {len(prompt)} tokens; {beside}at most {most} fit")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ValueError(f"the prompt holds a token outside the vocabulary of {vocab_size}")


def _check_generated(submit: Submit, vocab_size: int, max_model_len: int) -> None:
    generated = submit.generated
    if not generated:
        return
    if len(generated) >= submit.max_tokens or len(submit.prompt) + len(generated) >= max_model_len:
        raise ValueError(f"{len(generated)} generated tokens leave none to generate")
    if min(generated) < 0 or max(generated) >= vocab_size:
        raise ValueError(f"a generated token is outside the vocabulary of {vocab_size}")


def _check_sampling(params: TokenSampling, vocab_size: int) -> None:
    for name, bounds in _BOUNDS.items():
        if not bounds.allow(value := getattr(params, name)):
            raise ValueError(f"{name} must be {bounds.in_words}, not {value}")
    _check_ids(params, vocab_size)


def _check_bad_words(sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
    if not all(sequences):
        raise ValueError("bad_words holds an empty sequence of tokens")
    if not all(0 <= token < vocab_size for one in sequences for token in one):
        raise ValueError(f"bad_words names a token outside the vocabulary of {vocab_size}")


def _check_ids(params: TokenSampling, vocab_size: int) -> None:
    allowed = params.allowed_token_ids
    if allowed is not None and not (allowed and min(allowed) >= 0 and max(allowed) < vocab_size):
        raise ValueError(f"allowed_token_ids must be tokens of the vocabulary of {vocab_size}")
    if not all(0 <= token < vocab_size for token in params.logit_bias):
        raise ValueError(f"logit_bias names a token outside the vocabulary of {vocab_size}")
    if not all(abs(bias) <= FLOAT32_MAX or bias == -math.inf for bias in params.logit_bias.values()):
        raise ValueError("logit_bias must be finite, or -inf to ban a token")
    if max(params.logprobs or 0, params.prompt_logprobs or 0) > vocab_size:
        raise ValueError(f"logprobs and prompt_logprobs must be at most {vocab_size}")


def announce(requests: Sequence[SampledRequest], on_start: Callable[[list[Started]], None]) -> None:
    """Passes requests to `on_start` before anything is computed for them, each once."""
    fresh = [request for request in requests if not request.announced]
    if fresh:
        on_start([Started(request.id, request.seed) for request in fresh])
        for request in fresh:
            request.announced = True
