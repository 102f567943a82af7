from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corepipe.engine.messages import Output, Outputs, Started
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.serving.supervision.journal import (
    BREAKS_IN_A_ROW,
    BREAKS_WAITING,
    KILLS_IN_A_ROW,
    MOST_BREAKS,
    Journal,
    QueuedRequests,
)
from tests.engine.engine_support import submit


def journal(*names: str) -> Journal:
    made = Journal()
    for number, name in enumerate(names):
        made.add(submit(name), float(number))
    return made


def told(name: str, *tokens: int, ends: str | None = None) -> Outputs:
    return Outputs([Output(name, list(tokens), finish_reason=ends)])


def started(name: str, seed: int = 5) -> Outputs:
    return Outputs(started=[Started(name, seed)])


def test_what_waits_comes_again_as_it_was_but_for_its_place() -> None:
    made = journal("a", "b")
    assert made.lose_engine(broke=True) == []
    again = made.submits()
    assert [s.id for s in again] == ["a", "b"]
    assert all(s.replay and not s.generated and s.sampling.seed is None for s in again)


def test_what_has_started_goes_on_with_its_tokens_and_its_seed() -> None:
    made = Journal()
    made.add(submit("a", sampling=TokenSampling(prompt_logprobs=2, logprobs=1)), 0.0)
    made.take(started("a", seed=2**64 - 1))
    made.take(told("a", 7))
    made.take(told("a", 8, 9))
    made.lose_engine(broke=True)
    (again,) = made.submits()
    assert (again.generated, again.sampling.seed, again.replay) == ([7, 8, 9], 2**64 - 1, True)
    assert (again.sampling.prompt_logprobs, again.sampling.logprobs) == (None, 1)


def test_logprobs_of_a_prompt_are_asked_for_again_where_they_were_not_told() -> None:
    made = Journal()
    made.add(submit("a", sampling=TokenSampling(prompt_logprobs=2)), 0.0)
    made.take(started("a"))
    made.lose_engine(broke=True)
    assert made.submits()[0].sampling.prompt_logprobs == 2


def test_what_was_told_later_is_not_in_what_was_handed_over() -> None:
    made = journal("a")
    made.take(started("a"))
    made.take(told("a", 1))
    made.lose_engine(broke=True)
    (again,) = made.submits()
    made.take(told("a", 2))
    assert again.generated == [1]


def test_what_has_ended_or_is_given_up_does_not_come_again() -> None:
    made = journal("a", "b", "c")
    made.take(told("a", 1, ends="length"))
    made.give_up(["b", "unknown"])
    ended = made.lose_engine(broke=True)
    assert [(output.id, output.finish_reason) for output in ended] == [("b", "abort")]
    assert [s.id for s in made.submits()] == ["c"]
    assert len(made) == 1


def losses_survived(name: str, *, broke: bool, start: bool = True, tokens: bool = False) -> int:
    """Counts the engines that a request may lose in this way."""
    made = journal(name)
    for losses in range(1000):
        if start:
            made.take(started(name))
        if tokens:
            made.take(told(name, 1))
        if made.lose_engine(broke=broke):
            return losses
    return 1000


def test_engines_are_not_broken_for_ever() -> None:
    assert losses_survived("runs", broke=True) == BREAKS_IN_A_ROW
    assert losses_survived("gets on, and breaks each", broke=True, tokens=True) == MOST_BREAKS
    assert losses_survived("is taken", broke=True, start=False) == BREAKS_WAITING


def test_who_kills_engines_is_seldom_a_request() -> None:
    assert losses_survived("runs", broke=False) == KILLS_IN_A_ROW
    assert losses_survived("gets on", broke=False, tokens=True) == 1000
    assert losses_survived("waits", broke=False, start=False) == 1000


def test_who_waited_or_got_on_is_not_blamed_for_who_broke_it() -> None:
    """The bad request has started without a token; another one has sent some, and a third waits."""
    made = journal("bad", "good", "waits")
    made.take(started("good"))
    for _ in range(BREAKS_IN_A_ROW + 1):
        made.take(started("bad"))
        made.take(Outputs([Output("good", [1])], started=[Started("good", 5)]))
        ended = made.lose_engine(broke=True)
    assert [output.id for output in ended] == ["bad"]
    made.take(started("good"))
    assert made.lose_engine(broke=True) == [], "what was told since is what counts"
    assert [s.id for s in made.submits()] == ["good", "waits"]


def test_who_has_spent_it_is_told_that_a_retry_may_help() -> None:
    made = journal("a")
    for _ in range(BREAKS_IN_A_ROW + 1):
        made.take(started("a"))
        ended = made.lose_engine(broke=True)
    (output,) = ended
    assert (output.finish_reason, output.error_kind, output.tokens) == ("error", "unavailable", [])


def test_who_waits_is_counted_in_requests_and_tokens() -> None:
    made = journal("a", "b", "c")
    assert made.waiting == QueuedRequests(3, 9)
    made.take(started("a"))
    made.end("b")
    assert (made.waiting, len(made)) == (QueuedRequests(1, 3), 2)
    made.take(told("c", ends="error"))
    assert made.waiting == QueuedRequests()


def test_who_waits_is_counted_for_each_owner() -> None:
    made = Journal()
    for name, owner in (("a", "x"), ("b", "y"), ("c", "y")):
        made.add(submit(name, owner=owner), 0.0)
    made.take(started("b"))
    assert (made.waiting_of("x"), made.waiting_of("y"), made.waiting_of("z")) == (
        QueuedRequests(1, 3), QueuedRequests(1, 3), QueuedRequests(),
    )  # fmt: skip


def test_overdue_is_who_came_before_and_still_waits() -> None:
    made = journal("a", "b", "c", "d")
    made.take(started("b"))
    assert made.overdue(0.0) == []
    assert made.overdue(2.5) == ["a", "c"]


steps = st.lists(
    st.tuples(st.sampled_from(["start", "tell", "end", "give up", "lose"]), st.integers(0, 4)), max_size=40
)


@given(steps)
def test_each_request_ends_once_or_is_kept(moves: list[tuple[str, int]]) -> None:
    names = [f"r{i}" for i in range(5)]
    made = journal(*names)
    tokens: dict[str, list[int]] = {name: [] for name in names}
    ended: list[str] = []
    for move, number in moves:
        name = names[number]
        if move == "lose":
            ended += [output.id for output in made.lose_engine(broke=number < 3)]
        elif name in ended:
            continue
        elif move == "start":
            made.take(started(name))
        elif move == "tell":
            made.take(Outputs([Output(name, [number])], started=[Started(name, 1)]))
            tokens[name].append(number)
        elif move == "end":
            made.take(told(name, ends="stop"))
            ended.append(name)
        else:
            made.give_up([name])
    kept = made.submits()
    assert sorted([*ended, *(s.id for s in kept)]) == names
    assert all(s.generated == tokens[s.id] for s in kept)
    assert made.waiting.requests <= len(made) == len(kept)
