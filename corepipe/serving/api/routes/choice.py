"""One choice of an answer: the engine's news of one sequence, turned into text, logprobs and an ending."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from corepipe.serving.api.http_errors import (
    ApiError,
    expired,
    internal,
    invalid,
    overflowed,
    overloaded,
    unavailable,
)
from corepipe.serving.api.protocol import GenerationRequest
from corepipe.serving.api.routes.rendering import Ending, Logprobs
from corepipe.serving.detokenizer import Detokenizer, Pieces
from corepipe.serving.messages import Output, Submit, TokenLogprobs
from corepipe.serving.supervision.streams import OutputStream
from corepipe.serving.telemetry.requests import Finished, RequestMetrics

_FAILURES: dict[str, tuple[Callable[[str], ApiError], str]] = {
    "expired": (expired, "It has waited too long."),
    "unavailable": (unavailable, "The engine has stopped."),
    "invalid": (invalid, "The engine refused the request."),
    "overflow": (overflowed, "The model's logits overflowed."),
}
"""What is answered for an Output's `error_kind`, and what is said where it says nothing."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its token ids, and its text where the answer repeats it (echo)."""

    ids: list[int]
    text: str = ""


@dataclass(slots=True)
class Delta:
    """What one piece of news adds to a choice."""

    text: str
    logprobs: Logprobs | None = None


class Choice:
    """Follows one submitted sequence.  `silent`: the caller wants its prompt only, not a token more.

    `ending` is None until the choice has ended; `cut` says that it did so at a stop string, while the
    engine still generates.
    """

    def __init__(
        self, index: int, submit: Submit, request: GenerationRequest, prompt: Prompt, pieces: Pieces
    ) -> None:
        self.index = index
        self.submit = submit
        self.prompt = prompt
        self.generated = 0
        self.cached = 0
        self.silent = False
        self.cut = False
        self.ending: Ending | None = None
        self.last: Output | None = None
        self._request = request
        self._pieces = pieces
        self._text = Detokenizer(
            pieces, request.stops, request.include_stop_str_in_output, request.min_tokens
        )
        self._told_prompt = False
        self._first_at: float | None = None
        self._last_at = 0.0

    @property
    def ended(self) -> bool:
        return self.ending is not None

    def take(self, output: Output, metrics: RequestMetrics, arrival: float) -> Delta:
        """The text and logprobs that `output` adds; raises ApiError if it says that the request failed."""
        if output.finish_reason in ("error", "abort"):
            raise self._failed(output)
        self.cached = max(self.cached, output.cached)
        delta, before = self._opening(output), self.generated
        if not self.silent:
            self._append(delta, output)
        if self.generated > before:
            self._clock(self.generated - before, metrics, arrival)
        if output.finish_reason is not None:
            self.last = output
            if self.ending is None:
                delta.text += self._text.flush()
                self.ending = Ending(
                    "length" if self.silent else output.finish_reason, self._stop_token(output)
                )
        return delta

    def finished(self, reason: str, n: int, arrival: float, stream: OutputStream) -> Finished:
        """What the metrics are told at the end; times are the server's own, whatever the engine's clock."""
        started, first = stream.started_at, self._first_at
        return Finished(
            reason=reason,
            prompt_tokens=len(self.submit.prompt),
            cached_tokens=self.cached,
            generated_tokens=self.generated,
            max_tokens=0 if self.silent else self.submit.max_tokens,
            n=n,
            seconds=perf_counter() - arrival,
            queue_seconds=None if started is None else started - stream.opened_at,
            prefill_seconds=None if started is None or first is None else first - started,
            first_token_seconds=None if first is None else first - arrival,
            decoding_seconds=None if first is None else self._last_at - first,
            last=self.last,
        )

    def _opening(self, output: Output) -> Delta:
        """The prompt, where it is repeated; its logprobs come with the first token."""
        if self._told_prompt:
            return Delta("")
        self._told_prompt = True
        if self.submit.sampling.prompt_logprobs is None or not self.prompt.text:
            return Delta(self.prompt.text)
        entries: list[TokenLogprobs | None] = [None, *output.prompt_logprobs]
        offsets, at = [], 0
        for token in self.submit.prompt:
            offsets.append(at)
            at += len(self._pieces[token].decode("utf-8", "ignore"))
        return Delta(self.prompt.text, Logprobs(list(self.submit.prompt), entries, offsets))

    def _append(self, delta: Delta, output: Output) -> None:
        hidden = int(self._ends_with_stop_token(output) and not self._request.include_stop_str_in_output)
        shown = output.tokens[: len(output.tokens) - hidden] if hidden else output.tokens
        if output.logprobs:
            used = self._append_with_logprobs(delta, output, len(shown))
        else:
            text, used = self._text.feed(shown)
            delta.text += text
        if self._text.matched is not None:
            self.cut = output.finish_reason is None
            self.generated += used
            self.ending = Ending("stop", self._text.matched)
        else:
            self.generated += len(output.tokens)

    def _append_with_logprobs(self, delta: Delta, output: Output, shown: int) -> int:
        before = delta.logprobs or Logprobs([], [], [])
        tokens, entries, offsets = list(before.tokens), list(before.entries), list(before.offsets)
        used = 0
        for token, entry in zip(output.tokens, output.logprobs, strict=True):
            if self._text.matched is not None:
                break
            tokens.append(token)
            entries.append(entry)
            offsets.append(len(self.prompt.text) + self._text.decoded)
            if used < shown:
                delta.text += self._text.feed((token,))[0]
            used += 1
        delta.logprobs = Logprobs(tokens, entries, offsets)
        return used

    def _ends_with_stop_token(self, output: Output) -> bool:
        tokens = output.tokens
        return output.finish_reason == "stop" and bool(tokens) and tokens[-1] in self.submit.stop_ids

    def _stop_token(self, output: Output) -> int | None:
        if self._ends_with_stop_token(output) and output.tokens[-1] in self._request.stop_token_ids:
            return output.tokens[-1]
        return None

    def _clock(self, count: int, metrics: RequestMetrics, arrival: float) -> None:
        """So many tokens have come together: each after the first has a gap before it."""
        now = perf_counter()
        if self._first_at is None:
            self._first_at = self._last_at = now
            metrics.time_to_first_token.observe(now - arrival)
            count -= 1
        if count:
            metrics.inter_token_latency.observe((now - self._last_at) / count, count)
        self._last_at = now

    def _failed(self, output: Output) -> ApiError:
        self.last = output
        self.ending = Ending("error" if output.finish_reason == "error" else "abort", None)
        if output.finish_reason == "abort":
            return unavailable("The request was aborted by the server.")
        if output.error_kind == "overloaded":
            return overloaded(output.error or "The queue is full.", output.retry_seconds)
        if output.error_kind in _FAILURES:
            failure, reason = _FAILURES[output.error_kind]
            return failure(output.error or reason)
        logging.getLogger(__name__).error("request %s failed: %s", output.id, output.error)
        return internal()
