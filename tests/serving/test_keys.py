from __future__ import annotations

import hashlib
import math
import statistics
import time

import pytest

from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig, validated
from corepipe.serving.keys import KeyRing, read_key_file

KEY = "sk-secret"
HASHED = "sha256:" + hashlib.sha256(b"sk-hashed").hexdigest()


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (b"Bearer sk-secret", 0), (b"bearer other", 1), (b"BEARER  sk-secret ", 0), (b"Bearer sk-hashed", 2),
        (b"", None), (b"Bearer", None), (b"Bearer ", None), (b"Basic sk-secret", None), (b"sk-secret", None),
        (b"Bearer sk-secre", None), (b"Bearer \xff\xfe", None), (b"Bearer " + b"x" * 10**6, None),
        (b"Bearer " + HASHED.encode(), None),
    ],
)  # fmt: skip
def test_keys(header, found):
    assert KeyRing((KEY, "other", HASHED)).find(header) == found


def test_a_key_need_not_be_ascii():
    assert KeyRing(("schlüssel",)).find("Bearer schlüssel".encode()) == 0


def test_empty_keys_are_none():
    assert not KeyRing(("",))
    assert KeyRing(("", KEY)).find(b"Bearer ") is None


def test_a_key_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{KEY}\n\n{HASHED} third\n")
    file.chmod(0o640)
    assert read_key_file(file) == [KEY, HASHED, "third"]


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"sk-a\n", 0o644, r"everyone may read it \(mode 0644\); chmod 0640"),
        (b"# nothing\n\n", 0o600, "holds no key"),
        (b"sk-a\nsha256:xyz\n", 0o600, "sha256: wants the 64 lower-case hex digits"),
        (b"\xff\xfe", 0o600, "is not UTF-8 text"),
        (None, 0o600, "No such file"),
    ],
)
def test_a_key_file_that_is_of_no_use(tmp_path, content, mode, reason):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(UserError, match=reason) as caught:
        read_key_file(file)
    assert caught.value.param == "api_key_file"
    assert str(file) in caught.value.message


@pytest.mark.parametrize("entry", ["", "sha256:", "sha256:xyz", "sha256:" + "A" * 64])
def test_settings_refuse_what_is_no_key(entry):
    with pytest.raises(UserError, match="api_keys"):
        validated(ServerConfig, {"api_keys": (KEY, entry)})


def test_limits_of_keys_need_keys():
    with pytest.raises(UserError, match="there are no keys"):
        validated(ServerConfig, {"max_requests_per_key": 1})


@pytest.mark.slow
def test_how_long_a_look_up_takes_says_nothing_of_the_key():
    """Welch's t between keys that share no character and all but one; the best of three."""
    ring = KeyRing(("k" * 64,))
    assert min(welch(ring, b"Bearer " + b"x" * 64, b"Bearer " + b"k" * 63 + b"x") for _ in range(3)) < 4.5


def welch(ring, first, second):
    taken = {first: [], second: []}
    for number in range(40_000):
        header = second if number % 2 else first
        began = time.perf_counter_ns()
        ring.find(header)
        taken[header].append(time.perf_counter_ns() - began)
    one, two = (sorted(times)[: len(times) * 9 // 10] for times in taken.values())  # without interruptions
    spread = statistics.variance(one) / len(one) + statistics.variance(two) / len(two)
    return abs(statistics.mean(one) - statistics.mean(two)) / math.sqrt(spread)
