"""Three machines and a head, joined by Ray, all on one: no fault loses, doubles or changes an answer.

`make fleet-test`; figures go to stdout.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread

import psutil
import pytest

from tests.constrained.longer import longer
from tests.fleet.faults import NAMES, PORT, Strike, disturbed
from tests.fleet.machines import Machines
from tests.fleet.network import Network
from tests.servers import TINY, Served, run, served, until

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    with longer(TINY, 1024) as found:
        yield found


@pytest.fixture(scope="module")
def network() -> Iterator[Network | None]:
    """Makes a network; None where this user may not: links are not cut then."""
    found = Network.of(NAMES)
    yield found
    if found is not None:
        found.close()


@pytest.fixture(scope="module")
def machines(network: Network | None) -> Iterator[Machines]:
    found = Machines(PORT, network)
    try:
        found.head()
        found.join(*NAMES)
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def server(machines: Machines, model: Path) -> Iterator[Served]:
    with served(model, "--fleet", machines.address, "--replicas", 3, "--max-num-seqs", 8) as found:
        assert until(lambda: serving(found) == 3)
        yield found


def on_machines(server: Served) -> dict[str, str]:
    """Returns the states of the front's hosts by machine; none where it has lost all of them."""
    answer = server.get("/v1/placement")
    hosts = answer.json()["hosts"] if answer.status_code == 200 else ()
    return {host["node"]: host["state"] for host in hosts}


def serving(server: Served) -> int:
    return sum(state == "serving" for state in on_machines(server).values())


def serves(server: Served, name: str) -> bool:
    return on_machines(server).get(name) == "serving"


def sends(number: signal.Signals, machines: Machines, name: str, title: str) -> Callable[[], None]:
    return lambda: machines.one(name, title).send_signal(number)


def manager(server: Served) -> psutil.Process:
    """Waits for a manager and returns its process."""

    def found() -> list[psutil.Process]:
        below = psutil.Process(server.process.pid).children()
        return [one for one in below if "corepipe.serving.fleet.manager" in " ".join(one.cmdline())]

    assert until(found)
    return found()[0]


def links(network: Network, whole: Callable[[], None]) -> dict[str, Strike]:
    """Returns faults of one machine's link, which is mended when all open requests have been answered."""

    def mended(name: str) -> Callable[[], None]:
        def after() -> None:
            network.mend(name)
            whole()

        return after

    def flapping(name: str, times: int, seconds: float) -> tuple[Callable[[], None], Callable[[], None]]:
        """Returns a function that begins it, and one that waits for its end."""
        threads: list[Thread] = []

        def act() -> None:
            threads.append(Thread(target=network.flap, args=(name, times, seconds)))
            threads[-1].start()

        def after() -> None:
            threads[-1].join()
            whole()

        return act, after

    return {
        "link: cut": Strike(lambda: network.cut("a"), mended("a")),
        "link: cut to the machine": Strike(lambda: network.cut_to("b"), mended("b")),
        "link: cut to the front": Strike(lambda: network.cut_from("c"), mended("c")),
        "link: away 0.8 s, five times": Strike(*flapping("a", 5, 0.8), loses=False),
        "link: away 2 s, three times": Strike(*flapping("b", 3, 2.0)),
    }


def comings_and_goings(server: Served, machines: Machines) -> list[tuple[str, Strike]]:
    """Returns faults in which a machine is drained, leaves, joins anew under load, and serves again."""

    def drains(name: str) -> Callable[[], None]:
        def act() -> None:
            answer = machines.ask("drain", machines.address, name)
            assert answer.returncode == 0, answer.stderr

        return act

    def is_free(name: str) -> Callable[[], bool]:
        return lambda: name not in on_machines(server) and (machines.nodes() or {}).get(name) == "drained"

    def joined(name: str) -> Callable[[], None]:
        def after() -> None:
            assert until(lambda: serving(server) == len(NAMES))
            assert until(lambda: machines.open_requests(name) > 0), f"nothing is given to {name}"

        return after

    found = []
    for name in NAMES:
        left = Strike(drains(name), partial(machines.end, name), loses=False, times=1, until=is_free(name))
        came = Strike(
            partial(machines.start, name),
            joined(name),
            loses=False,
            times=1,
            until=partial(serves, server, name),
        )
        found += [("machine: drained", left), ("machine: joins", came)]
    return found


def test_strikes_lose_double_and_change_no_answer(
    server: Served, machines: Machines, model: Path, network: Network | None
) -> None:
    def whole() -> None:
        assert until(lambda: serving(server) == 3)

    def resume() -> None:
        machines.one("c", "raylet/raylet").send_signal(signal.SIGCONT)
        whole()

    def new_head() -> None:
        assert serving(server) == 3, "with the head gone all that lives serves on"
        machines.end("head")
        machines.head()
        assert until(lambda: set(NAMES) <= set(machines.nodes() or ()))
        whole()

    kill, stop = signal.SIGKILL, signal.SIGSTOP
    kinds = {
        "engine: kill -9": Strike(sends(kill, machines, "a", "engine.process"), whole),
        "engine: SIGSTOP": Strike(sends(stop, machines, "b", "engine.process"), whole),
        "host actor: kill -9": Strike(sends(kill, machines, "a", "HostActor"), whole),
        "host actor: SIGSTOP": Strike(sends(stop, machines, "b", "HostActor"), whole),
        "raylet: kill -9": Strike(sends(kill, machines, "a", "raylet/raylet"), whole),
        "raylet: SIGSTOP, later SIGCONT": Strike(
            sends(stop, machines, "c", "raylet/raylet"), resume, loses=False
        ),
        "front's part in Ray: kill -9": Strike(lambda: manager(server).kill(), whole, loses=False),
        **({} if network is None else links(network, whole)),
        "head: kill -9, later another": Strike(
            sends(kill, machines, "head", "gcs_server"), new_head, loses=False, all=True, times=1
        ),
    }
    with served(model) as alone:
        report = asyncio.run(disturbed(server, [*kinds.items()], alone.url))
    print(f"\n{report.table()}")
    for name in NAMES:
        print(name, {kind: f"{size:.0f} MB" for kind, size in machines.memory(name).items()})
    if network is None:
        print("links were not cut: that needs root and iproute2")
    assert report.wrong == []
    assert set(report.outcomes) <= {"done", "unavailable"}
    assert {name for name, count in report.sent_away.items() if count and not kinds[name].all} == set()


def test_machines_that_leave_and_join_under_load_cost_no_answer(
    server: Served, machines: Machines, model: Path
) -> None:
    with served(model) as alone:
        comings = comings_and_goings(server, machines)
        report = asyncio.run(disturbed(server, comings, alone.url, at_least=100))
    print(f"\n{report.table()}")
    assert report.wrong == []
    assert set(report.outcomes) == {"done"}


def test_a_machine_that_is_drained_is_free_and_another_takes_its_place(
    server: Served, machines: Machines
) -> None:
    drained = machines.ask("drain", machines.address, "a")
    assert drained.returncode == 0, drained.stderr
    assert until(lambda: (machines.nodes() or {}).get("a") == "drained")
    machines.join("d")
    assert until(lambda: (machines.nodes() or {}).get("d") == "serving")
    assert serving(server) == 3


def without_token(server: Served) -> float:
    """Returns the requests that Ray has refused, from the front's metrics."""
    lines = server.get("/metrics").text.splitlines()
    told = [line for line in lines if line.startswith("corepipe_fleet_refusals_total{")]
    return sum(float(line.split()[-1]) for line in told if 'reason="no_token"' in line)


def test_what_is_wrong_is_one_line_and_strangers_are_counted(
    server: Served, machines: Machines, model: Path
) -> None:
    def said(*arguments: object) -> str:
        answer = machines.ask(*arguments)
        assert answer.returncode == 2
        assert answer.stderr.count("\n") == 1, answer.stderr
        return answer.stderr

    assert "HOST:PORT" in said("status", "nowhere")
    assert "nothing answers there" in said("status", "127.0.0.1:9")
    assert "has this name" in said("join", machines.address, "--name", "b")
    assert "no machine of the fleet has this name" in said("drain", machines.address, "nobody")
    stranger = machines.ask("status", machines.address, RAY_AUTH_TOKEN="0" * 64)
    assert stranger.returncode == 2
    assert "does not take this token" in stranger.stderr
    before = without_token(server)
    nobody = machines.ask("status", machines.address, RAY_AUTH_MODE="disabled")
    assert nobody.returncode == 2
    assert until(lambda: without_token(server) > before), "who has no token is counted by the front"
    alone = run("serve", model, "--replicas", 2)
    assert alone.returncode == 2
    assert "--replicas: goes with --fleet" in alone.stderr
