"""Search for an earlier place in a sequence of tokens, in a time that does not grow with the sequence."""

from __future__ import annotations

from collections.abc import Sequence

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
