"""The earliest of many moments, compared with a search among all of them."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from corepipe.engine.loop.loop import TurnQueue

moments = st.sampled_from([0.0, 1.0, 1.5, 2.0, 7.0, inf])


@given(st.lists(st.tuples(st.integers(0, 4), moments)))
def test_the_first_number_with_the_earliest_moment(puts: list[tuple[int, float]]) -> None:
    queue, known = TurnQueue(5), [inf] * 5
    for number, moment in puts:
        queue.put(number, moment)
        known[number] = moment
        least = min(known)
        assert queue.first == (least, known.index(least) if least < inf else 0)
