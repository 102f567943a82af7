"""The answer of one sequence: its Outputs become text, and its end: for HTTP and `LLM` alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from corepipe.answers.parsing.formats import AnswerFormat
from corepipe.answers.parsing.reading import AnswerReader
from corepipe.answers.parts import Detokenizer, Finish, Logprobs, Pieces, Said, Text
from corepipe.engine.messages import Output, Predicted, Submit, TokenLogprobs


class TextOptions(Protocol):
    """Options of a request for the text of its answer, beside those for the engine."""

    @property
    def stops(self) -> Sequence[str]: ...

    @property
    def stop_token_ids(self) -> Collection[int]: ...

    @property
    def include_stop_str_in_output(self) -> bool: ...


class Echo(NamedTuple):
    """The text that an answer begins with.  logprobs: the number of alternatives for the prompt's tokens."""

    text: str
    logprobs: int | None = None


class TextAnswer:
    """Follows one submitted sequence: it takes Outputs and returns parts.

    echo: the text that the answer begins with, if any.  silent: only the prompt is wanted. reading: how calls
    and reasoning are separated from text, where the model may write them. finish: None until the answer has
    ended; `cut`: it ended at a stop string, while the engine goes on. generated: the number of tokens of the
    answer so far; cached: of prompt tokens found in the cache; predicted: the result of its prediction, if it
    has one. last: the engine's last Output, if it came.
    """

    def __init__(
        self,
        choice: int,
        submit: Submit,
        wanted: TextOptions,
        pieces: Pieces,
        echo: Echo | None = None,
        *,
        silent: bool = False,
        reading: AnswerFormat | None = None,
    ) -> None:
        self.choice = choice
        self.submit = submit
        self.echo = echo
        self.silent = silent
        self.generated = 0
        self.cached = 0
        self.predicted: Predicted | None = None
        self.cut = False
        self.finish: Finish | None = None
        self.last: Output | None = None
        self._wanted = wanted
        self._pieces = pieces
        self._text = Detokenizer(pieces, wanted.stops, wanted.include_stop_str_in_output, submit.min_tokens)
        self._begun = echo is None
        self._reader = None if reading is None else AnswerReader(choice, reading)

    def take(self, output: Output) -> list[Said]:
        """Returns the parts that an Output adds; none after the end.  The Output must not be a failure."""
        if output.finish_reason is not None:
            self.last = output
        if self.finish is not None:
            return []
        parts: list[Said] = []
        self.cached = max(self.cached, output.cached)
        self.predicted = output.predicted or self.predicted
        if not self._begun:
            self._begun = True
            parts.append(self._prompt(output))
        if self._reader is not None and not self.silent:
            parts += self._parsed(self._reader, output)
        elif not self.silent:
            parts.append(self._next(output))
        if output.finish_reason is not None and self.finish is None:
            reason = "length" if self.silent else output.finish_reason
            self.finish = Finish(self.choice, reason, self._stop_token(output))
        if self.finish is not None:
            parts += [self.finish] if self._reader is None else self._end(self._reader, self.finish)
        return parts

    def _parsed(self, reader: AnswerReader, output: Output) -> list[Said]:
        """Returns the parts of an output.  Where a call may end the answer, tokens are read one by one, so
        that it has the same tokens however they come."""
        parts: list[Said] = []
        for piece in _one_by_one(output) if reader.single else (output,):
            parts += self._read(reader, self._next(piece))
            if self.finish is not None:
                break
        return parts

    def _read(self, reader: AnswerReader, said: Text) -> list[Said]:
        """Returns the parts of a text; ends the answer after the last call that may be made."""
        parts = reader.take(said)
        if reader.full and self.finish is None:
            self.cut = self.last is None
            self.finish = Finish(self.choice, "stop")
        return parts

    def _end(self, reader: AnswerReader, finish: Finish) -> list[Said]:
        parts = reader.end(finish)
        assert isinstance(parts[-1], Finish)
        self.finish = parts[-1]
        return parts

    def _prompt(self, output: Output) -> Text:
        """Returns the echo of the prompt; its logprobs come with the first token."""
        echo = self.echo or Echo("")
        if echo.logprobs is None or not echo.text:
            return Text(self.choice, echo.text)
        entries = prompt_entries(output, echo.logprobs)
        offsets, at = [], 0
        for token in self.submit.prompt:
            offsets.append(at)
            at += len(self._pieces[token].decode("utf-8", "ignore"))
        return Text(self.choice, echo.text, Logprobs(self.submit.prompt, entries, offsets))

    def _next(self, output: Output) -> Text:
        tokens = shown = output.tokens
        if self._ends_with_stop_token(output) and not self._wanted.include_stop_str_in_output:
            shown = tokens[:-1]
        logprobs = None
        if output.logprobs:
            text, used, offsets = self._feed_singly(tokens, len(shown))
            logprobs = Logprobs(tokens[:used], output.logprobs[:used], offsets)
        else:
            text, used = self._text.feed(shown)
        if self._text.matched is not None:
            self.cut = self.last is None
            self.finish = Finish(self.choice, "stop", self._text.matched)
        else:
            used = len(tokens)
            if output.finish_reason is not None:
                text += self._text.flush()
        self.generated += used
        return Text(self.choice, text, logprobs)

    def _feed_singly(self, tokens: Sequence[int], shown: int) -> tuple[str, int, list[int]]:
        """Returns (text, tokens used, where their texts start)."""
        text, offsets, before = "", [], len(self.echo.text if self.echo else "")
        for at, token in enumerate(tokens):
            offsets.append(before + self._text.decoded)
            if at < shown:
                text += self._text.feed((token,))[0]
            if self._text.matched is not None:
                break
        return text, len(offsets), offsets

    def _ends_with_stop_token(self, output: Output) -> bool:
        tokens = output.tokens
        return output.finish_reason == "stop" and bool(tokens) and tokens[-1] in self.submit.stop_ids

    def _stop_token(self, output: Output) -> int | None:
        if self._ends_with_stop_token(output) and output.tokens[-1] in self._wanted.stop_token_ids:
            return output.tokens[-1]
        return None


def _one_by_one(output: Output) -> Iterator[Output]:
    """Yields an output's tokens as outputs of their own, of which the last one has its end."""
    if len(output.tokens) <= 1:
        yield output
        return
    last = len(output.tokens) - 1
    for at, token in enumerate(output.tokens):
        reason = output.finish_reason if at == last else None
        logprobs = output.logprobs[at : at + 1]
        yield replace(output, tokens=[token], logprobs=logprobs, finish_reason=reason)


def prompt_entries(output: Output, most: int) -> list[TokenLogprobs | None]:
    """Returns the logprob of each prompt token with at most `most` alternatives; None for the first."""
    return [None, *(_with_fewer(entry, most) for entry in output.prompt_logprobs)]


def _with_fewer(entry: TokenLogprobs, most: int) -> TokenLogprobs:
    return entry if len(entry.top) <= most else replace(entry, top=entry.top[:most])
