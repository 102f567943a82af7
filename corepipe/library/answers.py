"""Answers of the library: a prompt's answer while it grows, and when it is complete."""

from __future__ import annotations

from dataclasses import dataclass, field

from corepipe.answers.parts import (
    Call,
    Said,
    Text,
    joined_calls,
    joined_logprobs,
    joined_reasoning,
    joined_text,
)
from corepipe.answers.text_answer import TextAnswer
from corepipe.engine.messages import DeviceTimes, Output, Speculated, Submit, TokenLogprobs
from corepipe.errors import UserError
from corepipe.scheduler.request import FinishReason


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to a prompt.

    finish_reason: "stop" (a stop token or string), "length" or "tool_calls".  logprobs: one entry for each
    token id, prompt_logprobs one for each prompt token after the first; empty where not asked for.  device:
    the times that the emulated device would have taken.  tool_calls, reasoning: of a chat.  speculated: the
    results of drafts of it; None: there were none.
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
    speculated: Speculated | None = None


class GrowingAnswer:
    """An answer while it grows."""

    def __init__(self, prompt: str | None, submit: Submit, answer: TextAnswer) -> None:
        self.submit = submit
        self._prompt = prompt
        self._answer = answer
        self._parts: list[Said] = []
        self._tokens: list[int] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._device: DeviceTimes | None = None
        self._speculated: Speculated | None = None

    @property
    def ended(self) -> bool:
        """Tells whether the text is complete; the engine may not know it yet."""
        return self._answer.finish is not None

    def take(self, output: Output) -> None:
        """Adds an Output.  Raises UserError for a refusal."""
        if output.finish_reason == FinishReason.ERROR:
            raise UserError(output.error or "the engine refused the request")
        self._device = output.device
        self._speculated = output.speculated
        if self.ended:
            return
        self._parts += self._answer.take(output)
        self._tokens += output.tokens[: self._answer.generated - len(self._tokens)]
        self._prompt_logprobs += output.prompt_logprobs

    def result(self) -> RequestOutput:
        """Returns the complete answer."""
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
            speculated=self._speculated,
        )
