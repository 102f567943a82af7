"""Amounts of memory as users write them, in the forms of vLLM, of Kubernetes and of this project."""

from __future__ import annotations

import pytest

from corepipe.engine.config import EngineConfig, validated
from corepipe.engine.sizes import bytes_of
from corepipe.errors import UserError
from tests.servers import run


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1073741824", 1 << 30),
        ("1GiB", 1 << 30),
        ("1 GiB", 1 << 30),
        ("1Gi", 1 << 30),
        ("1G", 1 << 30),
        ("1g", 10**9),
        ("1GB", 10**9),
        ("1.5MiB", 3 << 19),
        (".5KiB", 512),
        ("25.6k", 25_600),
        ("1K", 1024),
        ("2kB", 2000),
        ("2KB", 2000),
        ("3T", 3 << 40),
        ("512B", 512),
        ("0", 0),
        ("1GiBx", None),
        ("1 G iB", None),
        ("GiB", None),
        ("", None),
        ("-1GiB", None),
        ("1e9", None),
        ("1,5GB", None),
        ("1_000", None),
        ("nan", None),
    ],
)
def test_amounts(text: str, value: int | None) -> None:
    assert bytes_of(text) == value


def test_a_setting_takes_either() -> None:
    for given, bytes_ in ((1 << 20, 1 << 20), ("1MiB", 1 << 20), (None, None)):
        assert EngineConfig(model="m", kv_cache_bytes=given).kv_cache_bytes == bytes_  # type: ignore[arg-type]
    for wrong in ("1 parsec", 0, "0", -1, 1.5):
        with pytest.raises(UserError, match="kv_cache_bytes: "):
            validated(EngineConfig, {"model": "m", "kv_cache_bytes": wrong})


def test_more_than_the_machine_has_is_warned_of() -> None:
    for amount, warned in (("1000TiB", True), ("1MiB", False)):
        ended = run("serve", "no-such-directory/model", "--port", 0, "--kv-cache-memory-bytes", amount)
        assert ended.returncode == 2
        told = [line for line in ended.stderr.splitlines() if "of this machine: it may" in line]
        assert len(told) == warned
        assert all("--kv-cache-memory-bytes: 1,024,000.0 GiB are more than the" in line for line in told)
