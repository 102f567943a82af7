from __future__ import annotations

import json
from itertools import islice
from math import inf

import pytest

from corepipe.errors import UserError
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.workload import (
    PrefixTree,
    Segment,
    Session,
    Synthetic,
    first_requests,
    token_ids,
    with_adapters,
)
from tests.simulation.simulations import lengths, workload


def sessions(**fields: object) -> list[Session]:
    return list(workload(**fields).sessions())  # type: ignore[arg-type]


def test_the_same_seed_is_the_same_stream_and_another_is_not() -> None:
    assert sessions(seed=1) == sessions(seed=1)
    assert sessions(seed=1) != sessions(seed=2)
    stream = workload(seed=1)
    assert list(stream.sessions()) == list(stream.sessions())


def test_other_lengths_do_not_move_the_arrivals() -> None:
    starts = [[s.start for s in sessions(input_len=spec)] for spec in (5, "uniform:1:90")]
    assert starts[0] == starts[1]


def test_more_requests_begin_as_fewer_do() -> None:
    assert sessions(requests=50)[:20] == sessions(requests=20)


def test_the_stream_is_made_as_it_is_read() -> None:
    endless = workload(requests=10**12)
    assert len(list(islice(endless.sessions(), 5))) == 5


def test_a_duration_ends_an_open_loop() -> None:
    starts = [s.start for s in sessions(requests=None, duration=40.0)]
    assert 150 < len(starts) < 250
    assert max(start or 0.0 for start in starts) <= 40.0


def test_turns_carry_the_conversation_on() -> None:
    (first, second, third), *_ = [s.turns for s in sessions(requests=9, turns=3, think_seconds=2.0)]
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert second.prompt[len(first.prompt)] == Segment(first.answer, first.output_tokens)
    assert third.prompt[: len(second.prompt)] == second.prompt
    assert (first.think_seconds, second.think_seconds) == (0.0, 2.0)
    assert third.prompt_tokens == sum(segment.tokens for segment in third.prompt)


def test_requests_and_their_rate_are_counted_by_turns() -> None:
    found = sessions(requests=200, rate=10.0, turns=4)
    assert [len(s.turns) for s in found] == [4] * 50
    assert found[-1].start == pytest.approx(20, rel=0.3)
    assert [len(s.turns) for s in sessions(requests=7, turns=4)] == [4, 3]


def test_a_prefix_tree_shares_its_levels() -> None:
    tree = PrefixTree.parse("1x100,3x50,2x10")
    paths = [turn.prompt for turn in first_requests(workload(200, prefixes=tree), 200)]
    assert {tuple(segment.tokens for segment in path[:3]) for path in paths} == {(100, 50, 10)}
    assert [len({path[level].id for path in paths}) for level in range(4)] == [1, 3, 6, 200]
    parents = {path[2].id: path[1].id for path in paths}
    assert all(parents[path[2].id] == path[1].id for path in paths)


def test_equal_prefixes_are_equal_tokens() -> None:
    one, other = (Segment(7, 20), Segment(8, 10)), (Segment(7, 12), Segment(9, 10))
    spelled, shorter = token_ids(one, 1000), token_ids(other, 1000)
    assert len(spelled) == 30
    assert spelled[:12] == shorter[:12]
    assert spelled[20:] != shorter[12:]
    assert token_ids(one, 1000, seed=1) != spelled
    assert {token < 50 for token in token_ids((Segment(1, 500),), 50)} == {True}


@pytest.mark.parametrize("spec", ["", "8", "1x", "ax5", "1x5,", "0x5", "2x0", "1x2x3"])
def test_a_prefix_tree_that_is_none(spec: str) -> None:
    with pytest.raises(UserError, match="1x512,8x256"):
        PrefixTree.parse(spec)


def test_what_a_report_says_of_a_workload_is_json() -> None:
    length = lengths(5)
    about = Synthetic(length, length, 5, arrivals=Arrivals(inf)).workload().about
    assert (about["arrival"], about["rate"]) == ("all at once", None)
    json.dumps(about, allow_nan=False)


def test_a_workload_needs_an_end_and_one_kind_of_loop() -> None:
    length = lengths(5)
    for duration in (None, inf):
        with pytest.raises(UserError, match="--requests or a finite --duration"):
            Synthetic(length, length, duration=duration, arrivals=Arrivals(1.0))
    for arrivals, users in ((None, None), (Arrivals(1.0), 3)):
        with pytest.raises(UserError, match="not both"):
            Synthetic(length, length, 5, arrivals=arrivals, users=users)


def test_sessions_have_adapters_and_share_prefixes_within_one() -> None:
    plain = Synthetic(
        lengths(8), lengths(4), 60, users=2, turns=2, prefixes=PrefixTree(((1, 32),)), seed=3
    ).workload()
    mixed = with_adapters(plain, 3, seed=3)
    stream = list(mixed.sessions())
    assert stream == list(mixed.sessions())
    assert mixed.about["adapters"] == 3
    assert {session.adapter for session in stream} == {0, 1, 2}
    firsts = {(session.adapter, session.turns[0].prompt[0].id) for session in stream}
    assert len(firsts) == 3, "each adapter has the one prefix for itself"
    before = list(plain.sessions())
    sizes = [[(t.prompt_tokens, t.output_tokens) for t in one.turns] for one in stream]
    assert sizes == [[(t.prompt_tokens, t.output_tokens) for t in one.turns] for one in before]
    ids = [segment.id for one in stream for segment in one.turns[-1].prompt[1:]]
    assert len(ids) == len({*ids}), "what no session shared, none shares now"
    assert all(one.turns[1].prompt[-2].id == one.turns[0].answer for one in stream)
