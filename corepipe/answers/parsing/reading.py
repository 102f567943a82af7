"""The reader of answers: from their text, as it comes, to parts: text, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from corepipe.answers.parsing.call_parts import CallParts
from corepipe.answers.parsing.calls import read_calls
from corepipe.answers.parsing.formats import AnswerFormat
from corepipe.answers.parsing.text_stream import MAX_HELD, NotACallError, Steps, TextCursor
from corepipe.answers.parts import CallArguments, Finish, Reasoning, Said, Text, overlap


class AnswerReader:
    """Reads one choice's answer: `take` its text as it comes, then its `end`.

    Its joined parts are the same in whatever pieces the text comes.  full: the answer is complete; further
    text is ignored.
    """

    def __init__(self, choice: int, reading: AnswerFormat) -> None:
        self.choice = choice
        self._reading = reading
        self._parts: list[Said] = []
        self._calls = CallParts(choice, reading, self._parts)
        self._form = reading.calls if reading.tools else None
        self._text = ""
        self._ended = False
        self._state = self._think if reading.thinking else self._begin
        self._thought = reading.thinking or reading.thought
        self._drop = reading.thinking
        self._before = ""
        self._cursor = TextCursor()
        self._steps: Steps[None] = _nothing()

    @property
    def single(self) -> bool:
        """Tells whether the answer ends after its first call."""
        return self._reading.single

    @property
    def full(self) -> bool:
        return self.single and self._calls.count > 0 and not self._cursor.certain

    def take(self, text: Text) -> list[Said]:
        """Returns the parts that the next text adds."""
        self._text += text.text
        self._go_on()
        said = self._told()
        return said if text.logprobs is None else [Text(self.choice, "", text.logprobs), *said]

    def end(self, finish: Finish) -> list[Said]:
        """Returns the rest, and the end of the answer."""
        self._ended = True
        self._go_on()
        reason = finish.finish_reason
        if reason == "stop" and self._calls.count and not self._reading.named:
            finish = msgspec.structs.replace(finish, finish_reason="tool_calls")
        return [*self._told(), finish]

    def _go_on(self) -> None:
        while not self.full and self._state():
            pass

    def _told(self) -> list[Said]:
        told, self._parts[:] = _merged(self._parts), []
        return told

    # Each state works on the text so far; it returns whether another state has something to do.

    def _begin(self) -> bool:
        """Reads the beginning, only white space so far: reasoning may come, and calls without an opening."""
        bare = self._text.lstrip()
        opening = self._opening_of_thoughts()
        if self._drop:
            self._text = bare
        elif len(self._text) - len(bare) > MAX_HELD:
            opening, bare = "", ""
        elif not bare:
            return self._turn_to(self._speak) if self._ended else False
        if not bare:
            return self._turn_to(self._speak) if self._text or self._ended else False
        if opening and bare.startswith(opening):
            self._text, self._thought, self._drop = bare[len(opening) :], True, True
            return self._turn_to(self._think)
        if opening.startswith(bare) and not self._ended:
            return False
        if self._form is not None and bare[0] in self._form.starts:
            return self._open(self._text[: len(self._text) - len(bare)], bare)
        return self._turn_to(self._speak)

    def _opening_of_thoughts(self) -> str:
        reasoning = self._reading.reasoning
        return reasoning.opening if reasoning is not None and not self._thought else ""

    def _think(self) -> bool:
        """Reads reasoning up to its closing marker, without the white space around it."""
        assert self._reading.reasoning is not None
        closing = self._reading.reasoning.closing
        text = self._text.lstrip() if self._drop else self._text
        at = text.find(closing)
        if at >= 0:
            self._tell_thought(_settled(text[:at])[0])
            self._text, self._drop = text[at + len(closing) :], True
            return self._turn_to(self._begin)
        kept = 0 if self._ended else overlap(text, closing)
        shown, held = _settled(text[: len(text) - kept])
        self._tell_thought(shown)
        self._text = held + text[len(text) - kept :] if not self._ended else ""
        return False

    def _speak(self) -> bool:
        """Reads text up to a call."""
        text = self._text.lstrip() if self._drop else self._text
        opening = self._form.opening if self._form is not None else ""
        at = text.find(opening) if opening else -1
        if at >= 0:
            shown, space = _settled(text[:at])
            self._tell(shown)
            return self._open(space + opening, text[at + len(opening) :])
        kept = overlap(text, opening) if opening and not self._ended else 0
        shown, held = _settled(text[: len(text) - kept]) if opening and not self._ended else (text, "")
        self._tell(shown)
        self._text = held + text[len(text) - kept :]
        return False

    def _open(self, before: str, after: str) -> bool:
        """Begins to read what may be a call; if it is none, `before` and it are text."""
        assert self._form is not None
        self._before, self._text = before, after
        self._cursor = TextCursor()
        self._steps = read_calls(self._cursor, self._calls, self._form)
        return self._turn_to(self._read)

    def _read(self) -> bool:
        cursor = self._cursor
        cursor.text += self._text
        cursor.ended, self._text = self._ended, ""
        try:
            next(self._steps)
        except StopIteration:
            self._text, self._drop = cursor.rest, True
        except NotACallError:
            if self.full:
                return False
            self._give_up()
        else:
            return False
        return self._turn_to(self._speak)

    def _give_up(self) -> None:
        """Makes text of what was no call, except for an end that may be the opening of a call."""
        cursor = self._cursor
        text = ("" if cursor.started_call else self._before) + cursor.read
        opening = self._form.opening if self._form is not None else ""
        kept = overlap(text, opening) if opening else 0
        self._tell(text[: len(text) - kept])
        self._text = text[len(text) - kept :] + cursor.rest

    def _turn_to(self, state: Callable[[], bool]) -> bool:
        self._state = state
        return True

    def _tell(self, text: str) -> None:
        if text:
            self._drop = False
            self._parts.append(Text(self.choice, text))

    def _tell_thought(self, text: str) -> None:
        if text:
            self._drop = False
            self._parts.append(Reasoning(self.choice, text))


def _nothing() -> Steps[None]:
    """Reads nothing."""
    yield


def _settled(text: str) -> tuple[str, str]:
    """Returns (the text to pass on, the white space at its end that is held back).

    White space is passed on as if it came one character at a time, in whatever pieces it comes: all that is
    held, whenever that is too much.
    """
    run = len(text) - len(text.rstrip())
    held = run % (MAX_HELD + 1)
    return text[: len(text) - held], text[len(text) - held :]


def _merged(parts: list[Said]) -> list[Said]:
    """Merges consecutive parts of the same kind into one."""
    merged: list[Said] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Text | Reasoning) and type(last) is type(part):
            merged[-1] = type(part)(part.choice, last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and last.index == part.index:
            merged[-1] = CallArguments(part.choice, part.index, last.text + part.text)
        else:
            merged.append(part)
    return merged
