"""The share of answers that meet the objective, on a clock of the test's own."""

from __future__ import annotations

from corepipe.engine.messages import Output
from corepipe.serving.fleet.slo_share import LEAST_JUDGED, WINDOW_SECONDS, SloShare
from corepipe.workload.slo import Slo

SLO = Slo.parse("ttft:500ms tpot:100ms")


def answered(share: SloShare, name: str, came: float, first: float, last: float) -> None:
    """Plays a request: its arrival at `came`, its first token, nine more, and its end at `last`."""
    share.begin(name, came)
    share.take([Output(name, [1])], first)
    share.take([Output(name, [1] * 9, finish_reason="length")], last)


def some(share: SloShare, count: int, first: float, last: float) -> None:
    for number in range(count):
        answered(share, f"{first} {last} {number}", 0.0, first, last)


def test_too_few_say_nothing() -> None:
    share = SloShare(SLO.met)
    some(share, LEAST_JUDGED - 1, 0.1, 0.2)
    assert share.share(1.0) is None
    some(share, 1, 0.1, 0.3)
    assert share.share(1.0) == 1.0


def test_late_first_tokens_and_slow_ones_count_and_are_forgotten() -> None:
    share = SloShare(SLO.met)
    some(share, 8, 0.4, 1.0)
    some(share, 1, 0.6, 0.7)
    some(share, 1, 0.4, 1.4)
    assert share.share(2.0) == 0.8
    assert share.share(1.4 + WINDOW_SECONDS + 0.1) is None


def test_a_late_one_is_judged_once_and_before_its_end() -> None:
    share = SloShare(SLO.met)
    for number in range(LEAST_JUDGED):
        share.begin(str(number), 0.0)
        share.take([Output(str(number), [1])], 0.7)
    assert share.share(1.0) == 0.0
    share.take([Output("0", [1], finish_reason="stop")], 1.0)
    some(share, LEAST_JUDGED, 0.1, 0.2)
    assert share.share(1.0) == 0.5


def test_what_ends_without_a_token_and_what_was_forgotten_are_not_judged() -> None:
    share = SloShare(SLO.met)
    some(share, LEAST_JUDGED, 0.6, 0.7)
    share.begin("aborted", 0.0)
    share.take([Output("aborted", finish_reason="abort")], 9.0)
    assert share.share(9.0) == 0.0
    share.forget()
    assert share.share(9.0) is None


def test_where_nothing_is_asked_nobody_is_followed() -> None:
    share = SloShare(None)
    some(share, 2 * LEAST_JUDGED, 9.0, 90.0)
    assert share.share(91.0) is None
    assert not share._open
