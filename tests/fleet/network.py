"""A network of emulated machines: a namespace each, joined by a bridge, whose links can be cut.

It needs root and iproute2.  Packets in a direction that is cut are dropped by a blackhole route at the
sender.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence

BRIDGE, SUBNET = "cp-fleet", "10.78.16"
HUB = f"{SUBNET}.1"
"""This machine's own address in it: the head's, and the front's."""


class Network:
    """The network of some machines, whose addresses are `SUBNET`.2 and so on."""

    def __init__(self, names: Sequence[str]) -> None:
        self._addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 2)}
        self.close()
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{HUB}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for name in names:
            self._join(name)

    @classmethod
    def of(cls, names: Sequence[str]) -> Network | None:
        """Makes a network; None where this user may not."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return None
        try:
            return cls(names)
        except subprocess.CalledProcessError:
            return None

    def address(self, name: str) -> str:
        return self._addresses.get(name, HUB)

    def inside(self, name: str) -> list[str]:
        """Returns the beginning of a command that runs on a machine."""
        return ["ip", "netns", "exec", _space(name)] if name in self._addresses else []

    def cut(self, name: str) -> None:
        """Cuts a link in both directions."""
        _ip("link", "set", _plug(name), "down")

    def cut_to(self, name: str) -> None:
        """Cuts the direction to a machine."""
        _ip("route", "replace", "blackhole", f"{self._addresses[name]}/32")

    def cut_from(self, name: str) -> None:
        """Cuts the direction from a machine."""
        _ip("-n", _space(name), "route", "replace", "blackhole", f"{HUB}/32")

    def flap(self, name: str, times: int, seconds: float) -> None:
        """Cuts and mends a link several times."""
        for _ in range(times):
            self.cut(name)
            time.sleep(seconds)
            self.mend(name)
            time.sleep(seconds)

    def mend(self, name: str) -> None:
        """Mends a link in both directions."""
        _ip("link", "set", _plug(name), "up")
        for place in ((), ("-n", _space(name))):
            for to in (self._addresses[name], HUB):
                _ip(*place, "route", "del", "blackhole", f"{to}/32", wrong_is_fine=True)

    def close(self) -> None:
        for name in self._addresses:
            _ip("netns", "del", _space(name), wrong_is_fine=True)
            _ip("link", "del", _plug(name), wrong_is_fine=True)
            _ip("route", "del", "blackhole", f"{self._addresses[name]}/32", wrong_is_fine=True)
        _ip("link", "del", BRIDGE, wrong_is_fine=True)

    def _join(self, name: str) -> None:
        space, plug, inner = _space(name), _plug(name), "eth0"
        _ip("netns", "add", space)
        _ip("link", "add", plug, "type", "veth", "peer", "name", inner, "netns", space)
        _ip("link", "set", plug, "master", BRIDGE, "up")
        _ip("-n", space, "addr", "add", f"{self._addresses[name]}/24", "dev", inner)
        _ip("-n", space, "link", "set", inner, "up")
        _ip("-n", space, "link", "set", "lo", "up")


def _space(name: str) -> str:
    return f"cp-fleet-{name}"


def _plug(name: str) -> str:
    return f"cp-plug-{name}"


def _ip(*words: str, wrong_is_fine: bool = False) -> None:
    """Runs `ip`.  Raises CalledProcessError."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode and not wrong_is_fine:
        raise subprocess.CalledProcessError(done.returncode, ["ip", *words], done.stdout, done.stderr)
