"""Input of the library: prompts, and conversations that a chat template turns into prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, TypeGuard

import msgspec

from corepipe.answers.parsing.choose import AUTO, choose
from corepipe.answers.parsing.forcing import answer_grammar, writes_calls
from corepipe.answers.parsing.formats import AnswerFormat
from corepipe.answers.parsing.prompt import TAIL_TOKENS, check_callable, reading_of, template_input
from corepipe.answers.parsing.tools import OfferedTools
from corepipe.errors import UserError, shown
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.structured.constraints import Constraint
from corepipe.structured.grammars import grammar_of, schema_of
from corepipe.structured.schemas import Schema
from corepipe.structured.spelling import Spelling

Prompt = str | list[int]
"""A text, or token ids."""
Conversation = Sequence[Mapping[str, object]]
"""Messages of a chat: {"role": ..., "content": ...}."""


class ChatTools:
    """The tools of a chat; their schemas are narrowed once for all its conversations.

    spelling: returns what the model can write.
    """

    def __init__(self, offer: OfferedTools, spelling: Callable[[], Spelling] = Spelling) -> None:
        self.offer = offer
        self._spelling = spelling

    @cached_property
    def narrowed(self) -> Mapping[str, Schema]:
        """The narrowed schemas by name.  Raises UserError for a schema that no grammar can express."""
        found = {}
        for name, where, schema in self.offer.arguments:
            text = msgspec.json.encode(schema).decode()
            constraint = Constraint(kind="json_schema", text=text, field=where)
            found[name] = schema_of(grammar_of(constraint, self._spelling()))
        return found


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt, and the format of its answer."""

    prompt: Prompt
    reading: AnswerFormat | None = None
    tools: ChatTools | None = None

    def grammar(self, tokens: Mapping[str, int], wanted: str) -> str:
        """Returns the grammar of the whole answer; `wanted` is that of its text.  Raises UserError."""
        if self.tools is None or not writes_calls(self.reading, self.tools.offer, tokens, wanted):
            return answer_grammar(self.reading, None, tokens, wanted)
        return answer_grammar(self.reading, self.tools.offer, tokens, wanted, self.tools.narrowed)


@dataclass(frozen=True, slots=True)
class Rendering:
    """Options for turning conversations into prompts.  begins: the assistant's turn begins at the end;
    continues: the prompt ends within the last message.  variables: for the template; special_tokens: messages
    may spell them."""

    begins: bool = True
    continues: bool = False
    variables: Mapping[str, object] | None = None
    special_tokens: bool = False


class ChatPrompts:
    """Makes prompts of conversations; the model's files, or `parsers`, give the format of its answers."""

    def __init__(self, tokenizer: Tokenizer, parsers: tuple[str, str] = (AUTO, AUTO)) -> None:
        self._tokenizer = tokenizer
        self._parsers = parsers
        self._dialect = choose(tokenizer, *parsers)

    @cached_property
    def spelling(self) -> Spelling:
        """The texts that the model can write."""
        return Spelling.of(self._tokenizer)

    def with_template(self, text: str) -> ChatPrompts:
        """Returns the same with another template.  Raises UserError if that is not valid."""
        return ChatPrompts(self._tokenizer.with_chat_template(text), self._parsers)

    def prepare(
        self, messages: object, rendering: Rendering, offer: OfferedTools | None
    ) -> list[PreparedPrompt]:
        """Returns a prompt for each conversation, if there are several.  Raises UserError."""
        with_tools = self._tokenizer.with_tools
        if offer is not None and with_tools is not self._tokenizer:
            return ChatPrompts(with_tools, self._parsers).prepare(messages, rendering, offer)
        check_callable(self._dialect, offer)
        tools = None if offer is None else ChatTools(offer, lambda: self.spelling)
        return [self._prepare(turns, rendering, tools) for turns in _conversations(messages)]

    def _prepare(
        self, messages: Conversation, rendering: Rendering, tools: ChatTools | None
    ) -> PreparedPrompt:
        offer, tokenizer = None if tools is None else tools.offer, self._tokenizer
        turns, told = template_input(messages, offer, self._dialect)
        free = rendering.special_tokens
        render = tokenizer.apply_chat_template if free else tokenizer.render_chat
        encode = tokenizer.encode if free else tokenizer.encode_chat
        variables = {**(rendering.variables or {}), **told}
        text = render(turns, rendering.begins, rendering.continues, **variables)
        prompt = encode(text, add_special_tokens=False)
        tail = tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        return PreparedPrompt(prompt, reading_of(self._dialect, offer, tail), tools)


def listed(prompts: object) -> list[Prompt]:
    """Returns prompts as a list, of one if there is one.  Raises UserError for what is not a prompt."""
    if isinstance(prompts, str) or _are_ids(prompts):
        return [prompts]  # type: ignore[list-item]
    if not several(prompts) or not all(isinstance(one, str) or one == [] or _are_ids(one) for one in prompts):
        raise UserError(
            f"prompts must be a text, a list of token ids, or a list of these, not {shown(repr(prompts))}",
            "prompts",
        )
    return list(prompts)


def several(values: object) -> TypeGuard[Sequence[Any]]:
    """Tells whether a value is a sequence of values, and not a text."""
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)


def _are_ids(prompt: object) -> bool:
    return (
        several(prompt)
        and bool(prompt)
        and all(isinstance(token, Integral) and not isinstance(token, bool) for token in prompt)
    )


def _conversations(messages: object) -> list[Conversation]:
    """Returns conversations as a list, of one if there is one.  Raises UserError for what is none."""
    if several(messages):
        given = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        if all(several(turns) and all(isinstance(turn, Mapping) for turn in turns) for turns in given):
            return given
    raise UserError(
        'messages must be a list of {"role": ..., "content": ...}, or several, '
        f"not {shown(repr(messages))}",
        "messages",
    )
