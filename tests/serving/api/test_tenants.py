from __future__ import annotations

from functools import partial

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.serving.api.http import tenants
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.http.tenants import ANYONE, Quota, Tenants, make_tenants
from tests.servers import until
from tests.serving.http_support import FakeEngine, begun, running, saying

BODY = {"model": "tiny", "prompt": "a", "max_tokens": 4}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_requests_in_flight():
    quota = Quota(2, None)
    with quota.holding():
        with quota.holding():
            assert dict(quota.headers())[b"x-ratelimit-remaining-requests"] == b"0"
            with pytest.raises(ApiError) as caught, quota.holding():
                pass
        with quota.holding(0):
            pass
    assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "1"})
    assert dict(quota.headers())[b"x-ratelimit-remaining-requests"] == b"2"


def test_what_is_owed_is_repaid_before_the_next_request():
    clock = Clock()
    quota = Quota(None, 60, clock)
    with quota.holding():
        quota.charge(90)
    with pytest.raises(ApiError) as caught, quota.holding():
        pass
    assert caught.value.headers == {"retry-after": "31"}
    headers = dict(quota.headers())
    assert headers[b"x-ratelimit-remaining-tokens"] == b"0"
    assert headers[b"x-ratelimit-reset-tokens"] == b"1m30s"
    clock.now += 31
    with quota.holding():
        pass
    clock.now += 3600
    assert dict(quota.headers())[b"x-ratelimit-remaining-tokens"] == b"60"


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 200)), max_size=60))
def test_over_time_a_key_gets_its_rate_and_one_burst(requests):
    """The used tokens are at most a minute's worth, the refill since, and the last request's overdraft."""
    clock = Clock()
    quota = Quota(None, 120, clock)
    used, largest = 0, 0
    for pause, tokens in requests:
        clock.now += pause
        try:
            with quota.holding():
                quota.charge(tokens)
        except ApiError:
            continue
        used, largest = used + tokens, max(largest, tokens)
        assert used <= 120 + (clock.now - Clock.now) * 2 + largest + 1e-6


def test_tenants_share_no_salt():
    one, other = make_tenants([b"1" * 32, b"2" * 32], None, None)
    assert one.salt != other.salt
    assert len(one.salt) == len(other.salt) == 32
    assert not ANYONE.salt


def test_who_is_alone_takes_no_turns():
    one, other = make_tenants([b"1" * 32, b"2" * 32], 5, None)
    assert one.turn != other.turn
    assert one.quota is not other.quota
    assert [tenant.turn for tenant in (ANYONE, *make_tenants([b"1" * 32], None, None))] == ["", ""]


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def clock(monkeypatch):
    """The clock of the quotas, which stands still."""
    made = Clock()
    monkeypatch.setattr(tenants, "Quota", partial(Quota, clock=made))
    return made


def test_a_key_has_its_part_and_no_more(clock):
    engine = FakeEngine(saying("a b"))
    limits = {"max_requests_per_key": 2, "max_tokens_per_minute_per_key": 100}
    with running(engine, api_keys=("one", "two"), **limits) as url, httpx.Client(base_url=url) as http:

        def ask(key, **changed):
            return http.post("/v1/completions", json=BODY | changed, headers=bearer(key))

        first = ask("one")
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-limit-tokens"] == "100"
        assert first.headers["x-ratelimit-remaining-tokens"] == "99"  # the answer's come at its end
        assert ask("one", n=2).status_code == 200
        too_many = ask("one", n=3)
        assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")
        assert ask("one", priority=-1).json()["error"]["param"] == "priority"
        assert ask("one", max_tokens=100).status_code == 200
        refused = ask("one")
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.headers["retry-after"] == "10"  # 115 of 100 tokens are used
        assert refused.headers["x-ratelimit-reset-tokens"] == "1m9s"
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
        assert ask("two").status_code == 200
        clock.now += 10
        assert ask("one").status_code == 200
    salts = {submit.cache_salt for submit in engine.submitted}
    assert len(salts) == 2


def test_requests_of_a_key_in_flight_are_counted_to_their_end():
    engine = FakeEngine(begun("a b"))
    with (
        running(engine, api_keys=("one", "two"), max_requests_per_key=1) as url,
        httpx.Client(base_url=url) as http,
    ):
        long = BODY | {"stream": True, "max_tokens": 200}
        with http.stream("POST", "/v1/completions", json=long, headers=bearer("one")) as answer:
            lines = answer.iter_lines()
            next(lines)
            busy = http.post("/v1/completions", json=BODY, headers=bearer("one"))
            assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")
            engine.script = saying("a b")
            assert http.post("/v1/completions", json=BODY, headers=bearer("two")).status_code == 200
        assert until(
            lambda: http.post("/v1/completions", json=BODY, headers=bearer("one")).status_code == 200
        )


def test_who_keeps_a_key_keeps_what_it_has_used():
    tenants = Tenants(["one", "two"], requests=1)
    one, two = (tenants.find(key) for key in (b"one", b"two"))
    with one.quota.holding():
        tenants.replace(["three", "one"])
        again = tenants.find(b"one")
        assert (again.salt, again.turn, again.quota) == (one.salt, one.turn, one.quota)
        with pytest.raises(ApiError), again.quota.holding():
            pass
    assert tenants.find(b"two") is None
    assert tenants.find(b"three").quota is not two.quota
    assert len(tenants) == 2
    tenants.replace(["one"])
    assert tenants.find(b"one").turn == "", "it is alone now"
