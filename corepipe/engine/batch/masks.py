"""Grammars that constrain answers: the tokens that each allows next, as masks of a batch's rows.

llguidance compiles the grammars. It is imported when the first one comes: where it is missing, only requests
with a grammar are refused.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from corepipe.engine.freeze_heap import give_back
from corepipe.errors import UserError, shown
from corepipe.neuron.step import mask_words
from corepipe.structured.grammars import LIMITS

if TYPE_CHECKING:  # llguidance may be missing, and a tokenizer is needed only for grammars
    from llguidance import LLMatcher, LLTokenizer

    from corepipe.models.text.tokenizer import Tokenizer

Mask = npt.NDArray[np.int32]
"""[mask_words(vocab)], as `inputs.Executor.give_masks` takes them."""

MAX_ERROR = 300
"""Most characters of the library's message about a grammar."""

MOST_KEPT, MOST_KEPT_CHARACTERS = 16, 1 << 20
"""Most grammars that are kept in their state before the first token, and most characters of them. The
library's memory of one, of which its copies have a part, grows to some 10 MB under `LIMITS`."""


class GrammarError(Exception):
    """An error of a grammar, or of the answer so far; its text is for the client."""


class GrammarMatcher:
    """The state of a grammar after the tokens that it has taken.

    error: why the answer cannot go on; it is final. contradicted: the cause is another constraint of the
    request. finished: nothing can follow. compile_seconds: the time that its grammar took to compile; None
    where it was compiled before. Used by one thread at a time.
    """

    def __init__(self, matcher: LLMatcher, compile_seconds: float | None = None) -> None:
        self._matcher = matcher
        self.compile_seconds = compile_seconds
        self.error: str | None = None
        self.contradicted = False
        self.finished = False

    def contradict(self, error: str) -> None:
        """Ends the answer: another constraint of the request leaves no token to draw."""
        self.error, self.contradicted = error, True

    def copy(self) -> GrammarMatcher:
        """Returns a matcher in the same state, which goes on independently."""
        other = GrammarMatcher(self._matcher.deep_copy())
        other.error, other.finished = self.error, self.finished
        other.contradicted = self.contradicted
        return other

    def allows(self, tokens: Sequence[int]) -> int:
        """Returns how many of these tokens, from the first on, may follow."""
        if self.error is not None:
            return 0
        return int(self._matcher.validate_tokens(list(tokens)))

    def forced(self) -> list[int]:
        """Returns the tokens of the text that must come next, whatever is drawn; none where there is a
        choice."""
        return [] if self.error is not None or self.finished else list(self._matcher.compute_ff_tokens())

    def fill(self, mask: Mask) -> None:
        """Writes the tokens that may follow into a mask that is contiguous; other threads run meanwhile.

        Where there is an error, the content of the mask means nothing.
        """
        if self.error is None:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._look()

    def take(self, token: int) -> None:
        """Takes the next token of the answer."""
        if self.error is None:
            self._matcher.consume_token(token)
            self._look()

    def take_all(self, tokens: Sequence[int]) -> None:
        """Takes several tokens."""
        if tokens and self.error is None:
            self._matcher.consume_tokens(list(tokens))
            self._look()

    def _look(self) -> None:
        if self._matcher.is_error():
            self.error = f"The answer cannot go on as its grammar wants: {_said(self._matcher)}"
        else:
            self.finished = self._matcher.is_stopped()


class GrammarCompiler:
    """Compiles grammars over the tokens of a model, `rows` of the logits, and keeps the latest ones.

    Its methods may be called by several threads.
    """

    def __init__(self, read: Callable[[], Tokenizer], rows: int) -> None:
        self._read = read
        self._rows = rows
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def constraint(self, grammar: str, generated: Sequence[int] = ()) -> GrammarMatcher:
        """Returns the matcher of a grammar that has taken the tokens `generated`. Raises GrammarError."""
        constraint = self._fresh(grammar)
        constraint.take_all(generated)
        if constraint.error is not None:
            raise GrammarError(constraint.error)
        return constraint

    def _fresh(self, grammar: str) -> GrammarMatcher:
        """Returns the matcher of a grammar before its first token, compiled where it is not kept."""
        with self._lock:
            tokenizer = self._known_tokenizer()
            known = self._kept.get(grammar)
            if known is not None:
                self._kept.move_to_end(grammar)
                return GrammarMatcher(known.deep_copy())
        began = perf_counter()
        matcher = _compile(tokenizer, grammar)
        seconds = perf_counter() - began
        with self._lock:
            self._kept[grammar] = matcher.deep_copy()
            while len(self._kept) > MOST_KEPT or sum(map(len, self._kept)) > MOST_KEPT_CHARACTERS:
                self._kept.popitem(last=False)
        return GrammarMatcher(matcher, seconds)

    def _known_tokenizer(self) -> LLTokenizer:
        """Returns llguidance's tokenizer, which is made once; called with the lock held."""
        if self._tokenizer is None:
            try:
                self._tokenizer = _tokenizer(self._read(), self._rows)
                give_back()
            except (UserError, ValueError, RuntimeError) as error:
                raise GrammarError(
                    f"answers of this model cannot be constrained: {shown(str(error), MAX_ERROR)}"
                ) from error
        return self._tokenizer


class MaskBuffer:
    """Memory for the masks of one batch after the other."""

    def __init__(self, vocab: int) -> None:
        self._words = mask_words(vocab)
        self._masks = np.empty((0, self._words), np.int32)

    def rows(self, count: int) -> npt.NDArray[np.int32]:
        """Returns `count` masks that allow everything, valid until the next call."""
        if len(self._masks) < count:
            self._masks = np.empty((2 * count, self._words), np.int32)
        masks = self._masks[:count]
        masks.fill(-1)
        return masks


def mask_of(tokens: Sequence[int], vocab: int) -> Mask:
    """Returns a mask that allows these tokens alone."""
    bits = np.zeros(mask_words(vocab) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def ban(mask: Mask, tokens: Collection[int]) -> None:
    """Removes tokens from a mask, unless none would be left."""
    kept = mask.view(np.uint32).copy()
    for token in tokens:
        kept[token >> 5] &= ~np.uint32(1 << (token & 31))
    if kept.any():
        mask[:] = kept.view(np.int32)


def _tokenizer(tokenizer: Tokenizer, rows: int) -> LLTokenizer:
    """Makes llguidance's tokenizer. Raises ValueError for a tokenizer that the library cannot read, and where
    there is no library."""
    try:
        from llguidance import LLTokenizer  # noqa: PLC0415 -- see the module's docstring
    except ImportError as error:
        raise ValueError("llguidance is not installed (pip install llguidance)") from error
    ends = sorted(token for token in tokenizer.eos_ids if token < rows)
    bare = LLTokenizer(_with_rows(tokenizer, rows), n_vocab=rows, eos_token=ends, slices=[])
    slices = LLTokenizer.general_slices()
    return bare.with_slices(slices)  # a call of its own: each of the two stops all other threads


def _with_rows(tokenizer: Tokenizer, rows: int) -> str:
    """Returns the tokenizer's JSON, without added tokens for which the model has no row: none of these can be
    drawn."""
    text = tokenizer.backend.to_str()
    if tokenizer.vocab_size <= rows:
        return text
    told = json.loads(text)
    told["added_tokens"] = [one for one in told["added_tokens"] if one["id"] < rows]
    return json.dumps(told)


def _compile(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 -- see the module's docstring

    limits: dict[str, Any] = {**LIMITS}
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits))
    if matcher.is_error():
        raise GrammarError(f"the grammar cannot be compiled: {_said(matcher)}")
    return matcher


def _said(matcher: LLMatcher) -> str:
    """Returns the first line of the library's error: the lines that follow are the parser's state."""
    return shown(matcher.get_error().partition("\n")[0], MAX_ERROR)
