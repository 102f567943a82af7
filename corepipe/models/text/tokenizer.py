"""Converts text to token ids and back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tokenizers import Encoding, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from corepipe.errors import UserError, shown
from corepipe.models.text.chat import ChatTemplate
from corepipe.models.text.continued_message import ContinuedMessage
from corepipe.models.text.control_tokens import ControlTokens

FILL_IN_THE_MIDDLE = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)
"""Tokens before the text in front of a gap, before the text behind it, and after that: those of Qwen2.5-Coder
and CodeGemma, StarCoder2 and Granite, SantaCoder, and DeepSeek-Coder."""

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")
"""Tokens that end a turn of chat; where a template writes them, they also end an answer."""

Side = Literal["left", "right"]
"""The side from which a prompt that is too long is truncated."""


class Tokenizer:
    """Wraps a `tokenizers` backend.

    `special` maps "bos_token" and similar names to their texts, as chat templates expect them.
    `response_template` is tokenizer_config.json's description of how the model writes its answers.
    `tool_template` is the chat template for chats with tools, if that is another one. `eos_ids` are the ids
    that end an answer. Methods raise UserError for invalid input.
    """

    def __init__(
        self,
        backend: Backend,
        special: Mapping[str, str],
        chat_template: str | None,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        response_template: Mapping[str, Any] | None = None,
        tool_template: str | None = None,
    ) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one by one
        self._backend = backend
        self._special = dict(special)
        self._chat_template = chat_template
        self._tool_template = tool_template
        self.response_template = response_template
        bos = self._token_id(special.get("bos_token"))
        self.bos_id = bos_id if bos is None else bos
        self.eos_ids = frozenset(eos_ids) | self._end_ids()

    def _token_id(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)

    def _end_ids(self) -> frozenset[int]:
        """Returns the eos token, and the turn ends that the chat templates write."""
        template = (self._chat_template or "") + (self._tool_template or "")
        ends = [self._special.get("eos_token"), *(token for token in TURN_ENDS if token in template)]
        return frozenset(i for i in map(self._token_id, ends) if i is not None)

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one; some ids may be unused, and the model may have more rows."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @cached_property
    def fill_in_the_middle(self) -> tuple[str, str, str] | None:
        """The one of `FILL_IN_THE_MIDDLE` whose tokens the tokenizer has; None: it has none."""
        return next((marks for marks in FILL_IN_THE_MIDDLE if self.added_tokens.keys() >= {*marks}), None)

    @property
    def chat_template(self) -> str | None:
        """The template's text."""
        return self._chat_template

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The texts of special tokens by their role (`SPECIAL_NAMES`)."""
        return self._special

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """The ids of the tokens that were added to the vocabulary, by their texts."""
        return {token.content: number for number, token in self._backend.get_added_tokens_decoder().items()}

    @property
    def backend(self) -> Backend:
        """The wrapped `tokenizers.Tokenizer`, for libraries that build on it."""
        return self._backend

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns token ids; `add_special_tokens` puts bos in front where the model wants it."""
        with _unencodable():
            # The quickest of the backend's methods, and one that lets other threads run.
            (found,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return list(found.ids)

    def cut(self, ids: list[int], most: int, side: Side, *, framed: bool) -> list[int]:
        """Truncates a prompt's ids to `most`, keeping its end where `side` is left.

        framed: they include the tokens put around a text, which are kept.
        """
        front, back = self._around if framed else ([], [])
        if len(ids) <= most:
            return ids
        inner = ids[len(front) : len(ids) - len(back)]
        room = max(most - len(front) - len(back), 0)
        kept = inner[len(inner) - room :] if side == "left" else inner[:room]
        return [*front, *kept, *back][:most]

    def pair(
        self,
        first: str,
        second: str,
        add_special_tokens: bool = True,
        *,
        most: int | None = None,
        most_second: int | None = None,
    ) -> tuple[list[int], int]:
        """Encodes two texts as one; returns the ids, and where the second's token types begin.

        most_second: tokens kept of the second text. most: tokens kept of all; the longer text is truncated,
        and where that is not enough both are, as transformers' `longest_first` does.
        """
        with _unencodable():
            one, two = self._bare(first), self._bare(second)
            if most_second is not None:
                _truncate(two, most_second)
            if most is not None:
                put = self._backend.num_special_tokens_to_add(is_pair=True) if add_special_tokens else 0
                kept = _shares(len(one.ids), len(two.ids), max(most - put, 0))
                _truncate(one, kept[0])
                _truncate(two, kept[1])
            joined = self._backend.post_process(one, two, add_special_tokens)
        own = next((at for at, text in enumerate(joined.sequence_ids) if text == 1), len(joined.ids))
        return list(joined.ids), _types_change(joined.type_ids, own)

    def _bare(self, text: str) -> Encoding:
        """Encodes a text without tokens around it."""
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return found

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The tokens put before and after a text."""
        (bare,) = self._backend.encode_batch_fast(["a"], add_special_tokens=False)
        framed = self._backend.post_process(bare)
        own = [at for at, put in enumerate(framed.special_tokens_mask) if not put]
        return (framed.ids[: own[0]], framed.ids[own[-1] + 1 :]) if own else ([], [])

    def encode_chat(self, marked: str, add_special_tokens: bool = False) -> list[int]:
        """Returns the token ids of what `render_chat` returned."""
        with _unencodable():
            return self._control.encode(marked, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of the ids; invalid UTF-8 becomes U+FFFD, unknown ids become nothing."""
        try:
            with library_failures("the tokenizer cannot decode these ids"):
                return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise UserError("token ids must be non-negative 32-bit integers", "prompt") from error

    def decode_token(self, token: int) -> str:
        """Returns the text of one token by itself; half a character becomes U+FFFD."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of a token; special tokens give their name, unknown ids nothing."""
        piece = self._backend.id_to_token(token) if token >= 0 else None
        if piece is None:
            return b""
        if token in self._added:
            return piece.encode()
        if self._byte_level:
            return _from_byte_alphabet(piece)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return piece.replace("\u2581", " ").encode()

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _byte_level(self) -> bool:
        decoder = self._backend.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    @cached_property
    def _control(self) -> ControlTokens:
        return ControlTokens(self._backend, self._chat_template or "")

    @cached_property
    def _template(self) -> ChatTemplate:
        if self._chat_template is None:
            raise UserError(
                "this model has no chat template: use completions, or give a template", "messages"
            )
        return ChatTemplate(self._chat_template)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: object,
    ) -> str:
        """Returns the prompt's text for a conversation; `variables` (tools, ...) go to the template.

        It ends where the assistant begins to speak, or (`continue_final_message`) within the last message.
        """
        known = self._variables(add_generation_prompt, variables)
        if not continue_final_message:
            return self._template.render(messages, known)
        end = ContinuedMessage(messages)
        return end.cut(self._template.render(end.messages, known))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: object,
    ) -> str:
        """Renders as `apply_chat_template` does, for `encode_chat` alone: control tokens of the template stay
        distinct from equally spelled text in messages and variables."""
        end = ContinuedMessage(messages) if continue_final_message else None
        said = messages if end is None else end.messages
        guard = self._control.guard(said, variables)
        known = self._variables(add_generation_prompt, variables)
        rendered = self._control.mark(self._template.render(said, known, guard, variables), guard)
        return rendered if end is None else end.cut(rendered)

    def _variables(self, add_generation_prompt: bool, given: Mapping[str, object]) -> dict[str, object]:
        """Returns a template's variables besides the messages."""
        known = {"tools": None, "documents": None, **self._special, **given}
        return {**known, "add_generation_prompt": add_generation_prompt}

    def template_names(self, name: str) -> bool:
        """Tells whether the chat template contains this word: other variables cannot matter."""
        return re.search(rf"\b{re.escape(name)}\b", self._chat_template or "") is not None

    def check_chat_template(self) -> None:
        """Tries the templates, if any; raises UserError for one that is not valid, unsafe or endless."""
        if self.has_chat_template:
            self._template.check()
        if self.with_tools is not self:
            self.with_tools.check_chat_template()

    @cached_property
    def with_tools(self) -> Tokenizer:
        """The same tokenizer with the template for chats that have tools, if that is another one."""
        text = self._tool_template
        return self if text is None else self._with_template(text)

    def with_chat_template(self, text: str) -> Tokenizer:
        """Returns the tokenizer with another template; raises UserError if that is not valid."""
        other = self._with_template(text)
        other.check_chat_template()
        return other

    def _with_template(self, text: str) -> Tokenizer:
        return Tokenizer(
            self._backend, self._special, text, self.eos_ids, self.bos_id, self.response_template
        )


def _shares(first: int, second: int, most: int) -> tuple[int, int]:
    """Returns the tokens kept of two texts, `most` in all: the longer one is truncated, then both."""
    if first + second <= most:
        return first, second
    less, more = sorted((first, second))
    more = max(less, most - less) if less <= most else less
    if less + more > most:
        less, more = most // 2, most - most // 2
    return (more, less) if first > second else (less, more)


def _truncate(text: Encoding, most: int) -> None:
    """Truncates the end; the library's method would clear an encoding that is short enough and empty."""
    if len(text.ids) > most:
        text.truncate(most)


def _types_change(types: Sequence[int], otherwise: int) -> int:
    """Returns where token types become 1; `otherwise`, where they never do."""
    return next((at for at, kind in enumerate(types) if kind == 1), otherwise)


@contextmanager
def _unencodable() -> Iterator[None]:
    """Turns failures of the backend into UserErrors."""
    try:
        with library_failures("the tokenizer cannot encode this text"):
            yield
    except (TypeError, ValueError) as error:
        raise UserError("the text is not valid Unicode (a lone surrogate?)", "prompt") from error


@contextmanager
def library_failures(what: str) -> Iterator[None]:
    """Turns a failure of the library into a UserError.

    It raises bare Exceptions for a vocabulary without the unknown token that a text needs, and panics for a
    pattern that backtracks to its limit: a panic is not an Exception, and would end the server.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {shown(str(error), 200)}", "prompt") from error


def byte_alphabet() -> dict[int, str]:
    """Returns GPT-2's printable character for each byte: itself where printable, else U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_BYTE_OF = {character: byte for byte, character in byte_alphabet().items()}


def _from_byte_alphabet(piece: str) -> bytes:
    if all(character in _BYTE_OF for character in piece):
        return bytes(_BYTE_OF[character] for character in piece)
    return piece.encode()


def set_bos_eos(backend: Backend, bos: str | None, eos: str | None, path: Path) -> None:
    """Makes `encode` put these tokens around every text (None: not).

    Raises UserError, which names `path`, for tokens that the vocabulary lacks.
    """
    around = [(token, backend.token_to_id(token)) for token in (bos, eos) if token is not None]
    for token, number in around:
        if number is None:
            raise UserError(f"{path}: the vocabulary has no token {shown(token)} to put around texts")
    template = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    try:
        if any(token.startswith("$") for token, _ in around):
            raise ValueError("what begins with $ stands for a text")
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
    except ValueError as error:  # a token that the library reads as a placeholder
        raise UserError(
            f"{path}: {shown(template)} cannot be put around texts: {shown(str(error))}"
        ) from error


def no_tokenizer() -> Tokenizer:
    """Returns the tokenizer of a model that reads no text: every text has no tokens."""
    return Tokenizer(Backend(BPE()), {}, None)
