"""An index of prefixes is what its caches have, as long as it has room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corepipe.scheduler.prefix_index import RecentPrefixes

acts = st.lists(
    st.tuples(st.sampled_from(["add", "add", "drop", "clear"]), st.integers(0, 9), st.integers(0, 2))
)


@given(acts)
def test_it_has_what_its_caches_have(told: list[tuple[str, int, int]]) -> None:
    """Told late or twice, too: of what a cache never had, or has no more."""
    index, caches = RecentPrefixes(100), [set[int](), set[int](), set[int]()]
    for act, key, cache in told:
        if act == "add":
            index.add(key, 1 << cache)
            caches[cache].add(key)
        elif act == "drop":
            index.drop(key, 1 << cache)
            caches[cache].discard(key)
        else:
            index.clear(1 << cache)
            caches[cache].clear()
    for key in range(10):
        holders = sum(1 << number for number, cache in enumerate(caches) if key in cache)
        assert list(index.chain([key])) == ([holders] if holders else [])
    assert len(index) == len(set.union(*caches))


@given(st.lists(st.integers(0, 9)))
def test_what_was_told_last_is_kept(keys: list[int]) -> None:
    index = RecentPrefixes(3)
    for key in keys:
        index.add(key, 1)
    latest = list(dict.fromkeys(reversed(keys)))[:3]
    assert {key for key in range(10) if list(index.chain([key]))} == set(latest)


def test_a_chain_ends_where_nobody_goes_on() -> None:
    index = RecentPrefixes(10)
    for key, bit in (("a", 1), ("a", 2), ("b", 2), ("d", 1)):
        index.add(key, bit)
    assert list(index.chain("abcd")) == [3, 2]
