"""The values of `--inject`, and the requests that get the faults."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.engine.config import validated
from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig
from corepipe.serving.faults import KINDS, SECONDS, FaultSequence, RequestFault, parse_faults


def test_faults_are_read():
    assert parse_faults(" 429:5%, cut-stream:0.5% ,slow:2%@500ms,stall:1%@3s,") == (
        RequestFault("429", 0.05),
        RequestFault("cut-stream", 0.005),
        RequestFault("slow", 0.02, 0.5),
        RequestFault("stall", 0.01, 3.0),
    )
    assert parse_faults("slow:1%")[0].seconds == SECONDS["slow"]
    assert parse_faults("") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("429", "'429' is not a fault; write KIND:SHARE%"),
        ("429:5", "is not a fault"),
        ("429:-5%", "is not a fault"),
        ("429:5%@x", "is not a fault"),
        ("cut-steam:1%", "did you mean cut-stream?"),
        ("418:1%", "did you mean 408?"),
        ("unhappy:1%", "there are 408"),
        ("429:1%@2s", "429 takes no time; only slow and stall do"),
        ("429:101%", "at most 100 %"),
        ("429:60%,500:41%", "add up to more than 100 %"),
        ("429:1%,429:1%", "429 is listed twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, says):
    with pytest.raises(ValueError, match=r"\w"):
        parse_faults(text)
    with pytest.raises(UserError) as caught:
        validated(ServerConfig, {"inject": text}, lambda name: "--" + name)
    assert says in caught.value.message
    assert caught.value.message.startswith("--inject: ")


@given(
    st.dictionaries(st.sampled_from(sorted(KINDS)), st.integers(0, 9), max_size=len(KINDS)),
    st.integers(0, 100),
)
def test_what_is_written_is_read_again(shares, time):
    faults = tuple(RequestFault(k, s / 100, time / 4 if k in SECONDS else 0.0) for k, s in shares.items())
    assert parse_faults(",".join(map(str, faults))) == tuple(
        fault
        if fault.seconds or fault.kind not in SECONDS
        else RequestFault(fault.kind, fault.share, SECONDS[fault.kind])
        for fault in faults
    )


def test_the_same_seed_gives_the_same_faults():
    faults = parse_faults("429:10%,slow:20%")
    first, again, other = (list(islice(FaultSequence(faults, seed), 2000)) for seed in (1, 1, 2))
    assert first == again != other
    counts = Counter(fault and fault.kind for fault in first)
    assert counts["429"] == pytest.approx(200, abs=40)
    assert counts["slow"] == pytest.approx(400, abs=60)


def test_all_of_them_can_fail():
    assert set(islice(FaultSequence(parse_faults("500:50%,503:50%"), 0), 1000)) == set(
        parse_faults("500:50%,503:50%")
    )


def test_users_do_not_meet_faults_unless_it_is_forced():
    fields = {"inject": "429:1%", "api_keys": ("secret",)}
    with pytest.raises(UserError, match="--inject_with_keys: --inject makes requests fail"):
        validated(ServerConfig, fields, lambda name: "--" + name)
    assert validated(ServerConfig, {**fields, "inject_with_keys": True}).inject
    assert validated(ServerConfig, {**fields, "api_keys": ()}).inject
    assert not validated(ServerConfig, {"api_keys": ("secret",)}).inject
