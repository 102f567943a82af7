"""`corepipe fleet` and `serve --fleet` without Ray, or before it is asked; with it: tests/fleet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from corepipe.errors import UserError
from corepipe.serving.fleet.cluster import parse
from tests.servers import TINY, run


def test_nothing_of_a_fleet_is_imported_without_one() -> None:
    script = (
        "import sys, corepipe.cli.launch, corepipe.cli.serve, corepipe.serving.engine.process;"
        "print(*(name for name in sys.modules if name.split('.')[0] in ('ray', 'cryptography')"
        " or name.startswith('corepipe.serving.fleet') or name == 'corepipe.cli.run.fleet'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:0", "host:65536", "host:6379x"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        parse(address, "--fleet")


def test_a_server_says_so_with_ray_and_without() -> None:
    done = run("serve", TINY, "--port", 0, "--fleet", "nowhere", "--replicas", 2)
    assert done.returncode == 2
    assert "--fleet nowhere: give the head's HOST:PORT" in done.stderr
    assert done.stderr.count("\n") == 1


def test_addresses_in_brackets_are_of_ipv6() -> None:
    assert parse("[::1]:6379", "--fleet") == ("::1", 6379)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--replicas", "2"], "--replicas"),
        (["--fleet", "127.0.0.1:6379"], "--replicas"),
        (["--fleet", "127.0.0.1:6379", "--replicas", "3", "--max-replicas", "2"], "--max-replicas"),
        (["--fleet", "127.0.0.1:6379", "--replicas", "0"], "--replicas"),
        (["--fleet", "127.0.0.1:6379", "--replicas", "2", "--slo", "ttft:1s"], "--slo"),
        (
            ["--fleet", "127.0.0.1:6379", "--replicas", "2", "--max-replicas", "3", "--slo", "ttft:1"],
            "ttft:1: give a time with its unit",
        ),
        (["--fleet", "127.0.0.1:6379", "--replicas", "2", "--also", f"other={TINY}"], "--also"),
    ],
)
def test_wrong_flags_are_one_line(arguments: list[str], named: str) -> None:
    done = run("serve", TINY, *arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
