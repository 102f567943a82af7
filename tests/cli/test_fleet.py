"""`corepipe fleet` and `serve --fleet` without Ray, or before it is asked; with it: tests/fleet."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.serving.fleet.cluster import parse

ROOT = Path(__file__).parents[2]


def test_nothing_of_a_fleet_is_imported_without_one() -> None:
    script = (
        "import sys, corepipe.cli.start.launch, corepipe.cli.run.serve, corepipe.engine.process.session;"
        "print(*(name for name in sys.modules if name.split('.')[0] in ('ray', 'cryptography')"
        " or name.startswith('corepipe.serving.fleet') or name == 'corepipe.cli.run.fleet'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_with_the_extra_a_server_without_a_fleet_imports_what_it_does_without_the_extra() -> None:
    """Checks that a server without a fleet starts as fast and takes as much memory; `make fleet-test` has the
    extra."""
    script = (
        "import sys;"
        "from importlib.abc import MetaPathFinder\n"
        "class Absent(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.split('.')[0] in {absent}: raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import corepipe.cli.start.launch, corepipe.cli.run.serve, corepipe.engine.process.session\n"
        "print(*sorted(name for name in sys.modules))"
    )

    def imported(*absent: str) -> set[str]:
        asked = script.replace("{absent}", repr(absent))
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert imported() == imported("ray", "cryptography")


def test_the_extra_is_no_part_of_what_is_installed_without_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {re.split(r"[^a-z0-9-]", need)[0] for need in project["optional-dependencies"]["ray"]}
    assert "ray" in extra
    installed = (ROOT / "requirements" / "run.txt").read_text()
    for name in extra:
        assert not any(need.startswith(name) for need in project["dependencies"]), name
        assert not re.search(rf"^{name}==", installed, re.M), name


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:0", "host:65536", "host:6379x"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        parse(address, "--fleet")


def test_addresses_in_brackets_are_of_ipv6() -> None:
    assert parse("[::1]:6379", "--fleet") == ("::1", 6379)
