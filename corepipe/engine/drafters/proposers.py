"""Proposals of draft tokens that need no model: text that a grammar forces, a prediction, or a repetition."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.batch.requests import SampledRequest
from corepipe.scheduler.request import Request

MOST_PLACES = 8
"""Earlier places that are compared, the latest first, for the one with the most tokens in common."""


class PrefixLookup:
    """Places in a growing sequence by the `least` tokens before them; of several, the place that has more of
    these tokens in common, up to `most`, and the latest of those."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: dict[int, int] = {}
        self._end = least

    def follow(self, tokens: Sequence[int]) -> None:
        """Notes the places that the sequence has gained, except its end, which nothing follows yet."""
        least, latest = self._least, self._latest
        for place in range(self._end, len(tokens)):
            key = tuple(tokens[place - least : place])
            if key in latest:
                self._earlier[place] = latest[key]
            latest[key] = place
        self._end = max(self._end, len(tokens))

    def find(self, tokens: Sequence[int], last: Sequence[int]) -> int | None:
        """Returns the place in `tokens`, which have been followed, behind the tokens that `last` ends with;
        None where there is none."""
        if len(last) < self._least:
            return None
        place = self._latest.get(tuple(last[-self._least :]))
        best, common = None, 0
        for _ in range(MOST_PLACES):
            if place is None or common == self._most:
                break
            length = self._in_common(tokens, place, last)
            if length > common:
                best, common = place, length
            place = self._earlier.get(place)
        return best

    def _in_common(self, tokens: Sequence[int], place: int, last: Sequence[int]) -> int:
        most = min(self._most, place, len(last))
        for length in range(self._least, most):
            if tokens[place - length - 1] != last[-length - 1]:
                return length
        return most


class NGramProposer:
    """Drafts by the last tokens: `least` .. `most` of them must have occurred before."""

    def __init__(self, least: int, most: int) -> None:
        self._lookup = PrefixLookup(least, most)

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Returns the tokens that followed; where they come to the end of the sequence, they go on with the
        draft itself: a loop."""
        tokens = request.tokens
        self._lookup.follow(tokens)
        place = self._lookup.find(tokens, tokens)
        if place is None:
            return ()
        draft = tokens[place : place + most]
        while len(draft) < most:
            draft.append(draft[len(draft) - (len(tokens) - place)])
        return draft


LEAST, MOST = 2, 8
"""Tokens by which an answer that has left the prediction is found in it again."""


class PredictionProposer:
    """Drafts from `tokens`, which the answer may be, or consist of."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._lookup = PrefixLookup(LEAST, MOST)
        self._lookup.follow([*tokens, -1])  # the end is a place as well
        self._place: int | None = 0
        self._generated = 0

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Returns the tokens that come next, where the answer is found in the prediction."""
        answer = request.tokens[request.num_prompt + self._generated :]
        self._generated += len(answer)
        self._place = self._after(answer, request)
        return () if self._place is None else self._tokens[self._place : self._place + most]

    def _after(self, answer: Sequence[int], request: Request) -> int | None:
        """Returns the place in the prediction behind these tokens, the latest of the answer."""
        if self._place is not None:
            end = self._place + len(answer)
            if list(self._tokens[self._place : end]) == answer:
                return end
        last = request.tokens[max(request.num_prompt, request.num_tokens - MOST) :]
        return self._lookup.find(self._tokens, last)


class GrammarProposer:
    """Drafts the text that must come in the tokens in which a tokenizer would write it; the model may choose
    others."""

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Returns the tokens up to the next choice."""
        assert isinstance(request, SampledRequest)
        return () if request.constraint is None else request.constraint.forced()[:most]
