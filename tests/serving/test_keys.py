from __future__ import annotations

import gc
import hashlib
import sys

import pytest

from corepipe.engine.config import validated
from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig
from corepipe.serving.keys import KeyRing, bearer, read_key_file

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
    key = bearer(header)
    assert (None if key is None else KeyRing((KEY, "other", HASHED)).find(key)) == found


def test_a_key_need_not_be_ascii():
    assert KeyRing(("schlüssel",)).find("schlüssel".encode()) == 0


def test_empty_keys_are_none():
    assert not KeyRing(("",)).digests
    assert KeyRing(("", KEY)).find(b"") is None


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
        (b"sk-a\nsha256:xyz\n", 0o600, "sha256: must be followed by the 64 lower-case hex digits"),
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


def test_how_long_a_look_up_takes_says_nothing_of_the_key():
    """It takes the same steps for a key that shares no character and for one that shares all but one.

    Measured times would show that on an idle machine only.
    """
    ring = KeyRing(("k" * 64, "other", HASHED))
    steps = steps_of(ring, b"x" * 64)
    assert steps == steps_of(ring, b"k" * 63 + b"x") == steps_of(ring, b"x" + b"k" * 63)
    assert [name for name in steps if isinstance(name, str)] == ["openssl_sha256", "digest"] + [
        "compare_digest"
    ] * 3


def steps_of(ring, presented):
    """Returns the lines that a look-up executes, and the C functions that it calls."""
    steps = []

    def trace(frame, event, _arg):
        if frame.f_code is KeyRing.find.__code__ and event == "line":
            steps.append(frame.f_lineno)
        return trace

    def profile(_frame, event, function):
        if event == "c_call" and function.__name__ not in ("settrace", "setprofile"):
            steps.append(function.__name__)

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # a collection within the look-up would call the callbacks that test tools add
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        assert ring.find(presented) is None
    finally:
        sys.setprofile(None)
        sys.settrace(before)
        gc.enable()
    return steps
