"""Several hosts behind one client: lost requests continue on others, and unknown peers are refused.

A token is a function of the last one and its position, as in the null executor, so that a lost, doubled or
restarted answer shows; hosts are processes, links are TLS over real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from corepipe.engine.channel import FrameDecoder, encode_frame
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Failed, FleetOutput, Output, Outputs, Prefixes, Ready, Started
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.errors import UserError
from corepipe.serving.fleet import client as fleet_client
from corepipe.serving.fleet import scaler
from corepipe.serving.fleet.client import FleetClient
from corepipe.serving.fleet.connector import HostAddress
from corepipe.serving.fleet.identity import PEER, Identity
from corepipe.serving.fleet.remote import RemoteHost
from corepipe.serving.fleet.scaler import Scaler
from corepipe.serving.fleet.wire import Beat, EngineOrder, FromHost, Hello
from corepipe.serving.supervision.client import EngineClient, OutputStream
from corepipe.serving.supervision.supervisor import ProcessClient
from corepipe.version import __version__
from tests.engine.engine_support import GREEDY, HELD_AT, submit
from tests.serving.fleet.fleet_support import HostProcess, Hosts, Proxy, front, hosts, until
from tests.serving.supervision.test_client import child, collect
from tests.serving.telemetry.test_neuron_metrics import stats

CONFIG = EngineConfig(model="none", max_num_seqs=16)
TOKENS = 200
SAMPLINGS = [GREEDY, TokenSampling(seed=7), TokenSampling(presence_penalty=0.5, seed=8)]


def tokens_of(outputs: list[Output]) -> list[int]:
    assert outputs[-1].finish_reason == "length", outputs[-1]
    return [token for output in outputs for token in output.tokens]


def losses(client: FleetClient) -> dict[str, int]:
    """Counts losses by reason, except of links: a machine that stands still for 1.5 s is silent in any case.
    `refusals` show links that are cut because of their messages."""
    return {reason: count for reason, count in client.restarts.items() if count and reason != "link"}


def machines_of(outputs: list[Output]) -> list[str]:
    last = outputs[-1]
    assert isinstance(last, FleetOutput)
    return last.machines


async def asked(client: EngineClient, batch: str, begun: set[str] | None = None) -> list[list[int]]:
    """Returns answers to a dozen requests, some greedy, some drawn.  `begun`: those with some tokens."""

    async def follow(stream: OutputStream) -> list[int]:
        outputs = []
        async for output in stream:
            outputs.append(output)
            if begun is not None:
                begun.add(output.id)
        return tokens_of(outputs)

    streams = [
        client.submit(submit(f"{batch}-{i}", [*range(9, 12 + i)], TOKENS, sampling=SAMPLINGS[i % 3]))
        for i in range(12)
    ]
    return await asyncio.gather(*map(follow, streams))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a host be away for any time without being replaced."""
    monkeypatch.setattr(fleet_client, "UNREACHABLE_SECONDS", 1e3)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Returns the same answers without a fleet, on one machine."""

    async def main() -> list[list[int]]:
        client = ProcessClient(CONFIG, child("assemble_slow"))
        await client.start()
        try:
            return await asked(client, "x")
        finally:
            await client.close()

    return asyncio.run(main())


def held(folder: Path) -> EngineConfig:
    """Makes the config of engines of `assemble_held`: the file that holds them is in `folder`."""
    return CONFIG.model_copy(update={"model": str(folder / "held")})


@dataclass
class Struck:
    """A fleet of `held` hosts, with faults while it answers."""

    client: FleetClient
    fleet: Hosts
    hosts: list[HostProcess]
    proxies: list[Proxy] = field(default_factory=list)

    def remote(self, number: int) -> RemoteHost:
        return next(remote for remote in self.client.remotes if remote.at.name == f"h{number}")

    def hold(self) -> None:
        """Keeps answers from ending from now on."""
        self._gate.touch()

    def let_go(self) -> None:
        """Lets answers end."""
        self._gate.unlink()

    async def under_way(self, batch: str) -> asyncio.Task[list[list[int]]]:
        """Runs `asked` until each host has begun an answer, which it does not end before `let_go`.

        It runs again where a host was lost by itself before all had begun: it came back without requests.
        """
        while True:
            await self.whole()
            self.hold()
            begun, before = set[str](), self._lost()
            work = asyncio.create_task(asked(self.client, batch, begun))

            def all_have(begun: set[str] = begun) -> bool:
                return all(remote.open & begun for remote in self.client.remotes)

            await until(lambda before=before, all_have=all_have: all_have() or self._lost() > before)
            if all_have():
                return work
            self.let_go()
            await work

    async def whole(self) -> None:
        await until(lambda: all(remote.serves for remote in self.client.remotes))

    async def cuts_off(self, number: int, strike: Callable[[], object]) -> None:
        """Causes a fault, and waits until the link to this host is lost: the next one has another lease."""
        remote, links = self.remote(number), self.client.restarts["link"]
        lease = remote.lease
        strike()
        await until(lambda: remote.lease > lease)
        assert self.client.restarts["link"] > links

    async def killed_engine(self) -> None:
        """Kills an engine; its host reports that, unless the link was lost by itself."""
        remote, before = self.remote(0), self.client.restarts.get("killed", 0)
        lease = remote.lease
        self.hosts[0].engine().kill()
        await until(lambda: self.client.restarts.get("killed", 0) > before or remote.lease > lease)
        self.let_go()

    async def stopped_host_that_goes_on(self) -> None:
        stopped = self.hosts[1].process
        await self.cuts_off(1, lambda: stopped.send_signal(signal.SIGSTOP))
        stopped.send_signal(signal.SIGCONT)
        self.let_go()

    async def cut(self, number: int, *ways: str) -> None:
        """Cuts a link until that is noticed."""
        open_ways = self.proxies[number].open
        await self.cuts_off(number, lambda: open_ways.update(dict.fromkeys(ways, False)))
        open_ways.update(dict.fromkeys(ways, True))

    async def cut_to_the_host(self) -> None:
        await self.cut(0, "to_host")
        self.let_go()

    async def cut_to_the_front(self) -> None:
        await self.cut(0, "to_front")
        self.let_go()

    async def cut_both_ways(self) -> None:
        await self.cut(0, "to_host", "to_front")
        self.let_go()

    async def bytes_played_again(self) -> None:
        await self.cuts_off(0, lambda: self.proxies[0].inject(self.proxies[0].seen[-1]))
        self.let_go()
        await until(lambda: self.client.refusals.get(("node-h0", "tampered")) == 1)

    async def killed_host(self) -> None:
        with pytest.MonkeyPatch.context() as impatience:
            impatience.setattr(fleet_client, "UNREACHABLE_SECONDS", 0.0)
            await self.cuts_off(1, self.hosts[1].process.kill)
        self.let_go()
        await until(lambda: "h1" in self.fleet.replaced)

    async def drained_host(self) -> None:
        before, had = losses(self.client), set(self.remote(2).open)
        self.client.drain("h2")
        self.client.submit(submit("late", max_tokens=4))
        assert self.remote(2).open == had
        self.let_go()
        await until(lambda: "h2" in self.fleet.replaced)
        assert losses(self.client) == before

    async def cut_where_there_is_no_other(self) -> None:
        self.proxies[0].open["to_host"] = False
        await until(lambda: not self.client.alive)
        assert self.client.restarting
        self.proxies[0].open["to_host"] = True
        self.let_go()

    @property
    def _gate(self) -> Path:
        return Path(self.client._config.model)

    def _lost(self) -> int:
        """Counts the losses for any reason."""
        return sum(self.client.restarts.values())

    @property
    def strikes(self) -> list[Callable[[], Awaitable[None]]]:
        """Returns the faults, to cause one after the other; the last ones leave fewer and fewer hosts."""
        return [
            self.killed_engine,
            self.stopped_host_that_goes_on,
            self.cut_to_the_host,
            self.cut_to_the_front,
            self.cut_both_ways,
            self.bytes_played_again,
            self.killed_host,
            self.drained_host,
            self.cut_where_there_is_no_other,
        ]


@asynccontextmanager
async def fleet_of(
    folder: Path, count: int, assemble: str = "assemble_held", *, proxied: bool = False
) -> AsyncIterator[Struck]:
    """Yields a fleet of so many hosts when all of them serve; proxied: through proxies that cut links."""
    with hosts(folder, count, assemble) as (identity, started), contextlib.ExitStack() as ends:
        proxies = [ends.enter_context(contextlib.closing(Proxy(host.at))) for host in started if proxied]
        at = [one.at for one in proxies or started]
        async with front(identity, held(folder), *at) as (client, fleet):
            yield Struck(client, fleet, started, proxies)


async def test_no_strike_loses_doubles_or_changes_an_answer(
    tmp_path: Path, expected: list[list[int]]
) -> None:
    async with fleet_of(tmp_path, 3, proxied=True) as struck:
        assert await asked(struck.client, "undisturbed") == expected
        for strike in struck.strikes:
            work = await struck.under_way(strike.__name__)
            await strike()
            assert await work == expected, strike.__name__


async def test_a_long_queue_asks_for_a_host_which_is_drained_when_it_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_client, "SCALE_SECONDS", 0.01)
    monkeypatch.setattr(scaler, "PATIENT_SECONDS", 0.0)
    monkeypatch.setattr(scaler, "IDLE_SECONDS", 0.2)
    with hosts(tmp_path, 2, "assemble_held") as (identity, started):
        fleet = Hosts(*(host.at for host in started), at_first=1)
        client = FleetClient(held(tmp_path), fleet, identity, None, Scaler(1, 2, seats=8))
        await client.start()
        struck = Struck(client, fleet, started)
        struck.hold()
        streams = [client.submit(submit(f"r{i}", max_tokens=HELD_AT + 8)) for i in range(60)]
        await until(lambda: sum(remote.serves for remote in client.remotes) == 2)
        struck.let_go()
        for outputs in await asyncio.gather(*map(collect, streams)):
            tokens_of(outputs)
        await until(lambda: len(fleet.replaced) == 1)
        assert fleet.wanted == [2, 1]
        assert not losses(client)
        await client.close()


async def test_a_host_that_comes_back_says_what_its_cache_has(tmp_path: Path) -> None:
    """Its engine was out of reach and not lost: the next prompt with the same prefix goes there again."""
    prompt, block = list(range(5, 69)), 16
    async with fleet_of(tmp_path, 2, "assemble_slow", proxied=True) as struck:
        client = struck.client
        one, other = client.remotes
        one.open.add("somebody's")
        tokens_of(await collect(client.submit(submit("first", prompt, 4))))
        one.open.discard("somebody's")
        await struck.cut(1, "to_host", "to_front")
        await struck.whole()
        last = await collect(client.submit(submit("again", prompt, 4)))
        assert machines_of(last) == [other.at.node]
        assert sum(output.cached for output in last) == 3 * block


async def test_an_answer_says_which_machines_it_is_from(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 2) as struck:
        struck.hold()
        work = asyncio.create_task(collect(struck.client.submit(submit("r", max_tokens=TOKENS))))
        await struck.killed_engine()
        outputs = await work
        assert machines_of(outputs) == ["node-h0", "node-h1"]
        assert not any(isinstance(output, FleetOutput) for output in outputs[:-1])


async def test_the_placement_knows_the_hosts(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 2, "assemble_slow") as struck:
        told: list[Ready] = []
        struck.client.on_ready = told.append
        stream = struck.client.submit(submit("r", max_tokens=TOKENS))
        struck.client.drain("h0")
        assert [host["state"] for host in told[-1].placement["hosts"]] == ["draining", "serving"]
        tokens_of(await collect(stream))
        (left,) = told[-1].placement["hosts"]
        at = struck.hosts[1].at
        known = {"name": "h1", "node": "node-h1", "address": f"{at.address}:{at.port}", "state": "serving"}
        assert left == {**left, **known, "replicas": [1]}
        assert left["kernels"]


def test_what_a_host_says_that_is_not_so_is_not_believed() -> None:
    """A host reports another host's request, or load that it was not given, to its own front."""
    remote = RemoteHost(HostAddress("a", "a", "a", 1, ""), 0, epoch=0)
    remote.open.add("mine")
    assert remote.fault_in(Outputs([Output("mine")])) is None
    assert remote.fault_in(Outputs([Output("another's")])) == "foreign"
    assert remote.fault_in(Outputs(started=[Started("another's", 1)])) == "foreign"
    assert remote.fault_in(Outputs(stats=stats(0.0, [0.0], running=1, waiting=0))) is None
    assert remote.fault_in(Outputs(stats=stats(0.0, [0.0], running=1, waiting=1))) == "load"
    assert remote.fault_in(Outputs(stats=stats(0.0, [0.0], running=-1, waiting=0))) == "load"
    remote.ready = Ready({}, blocks=2, block_size=16, max_model_len=64, isa="none", load_seconds=0.0)
    assert remote.fault_in(Outputs(prefixes=Prefixes(bytes(16)))) is None
    assert remote.fault_in(Outputs(prefixes=Prefixes(bytes(24)))) == "prefixes"


LIES = {
    "foreign": Outputs([Output("another's", [1])]),
    "load": Outputs(stats=stats(0.0, [0.0], running=-1, waiting=0)),
    "prefixes": Outputs(prefixes=Prefixes(bytes(1 << 20))),
}


async def test_a_host_that_lies_is_cut_off_and_counted_and_nothing_is_lost(
    tmp_path: Path, expected: list[list[int]]
) -> None:
    """A false report of each kind above, each by another host."""
    async with fleet_of(tmp_path, 1 + len(LIES)) as struck:
        client, replaced = struck.client, struck.fleet.replaced
        for counted, fault in LIES.items():
            work = await struck.under_way(counted)
            liar, before = client.remotes[0], Counter(client.refusals)
            assert liar.epoch is not None
            client.heard(liar, liar.lease, [msgspec.structs.replace(fault, epoch=liar.epoch)])
            assert Counter(client.refusals) - before == {("front", counted): 1}
            assert replaced[-1] == liar.at.name
            struck.let_go()
            assert await work == expected, counted
        assert len(replaced) == len(LIES)


async def test_what_bears_an_old_number_is_dropped_and_counted_and_nothing_is_lost(
    tmp_path: Path, expected: list[list[int]]
) -> None:
    """Messages with the number of an engine that is gone or a connection that is over, at both ends."""
    async with fleet_of(tmp_path, 1) as struck:
        client = struck.client
        work = await struck.under_way("asked")
        (remote,) = client.remotes
        assert remote.epoch is not None
        assert remote.connector is not None
        doubled = Output(next(iter(remote.open)), [1, 2, 3], finish_reason="length")
        client.heard(remote, remote.lease, [Outputs([doubled], epoch=remote.epoch - 1)])
        client.heard(remote, remote.lease - 1, [Outputs([doubled], epoch=remote.epoch)])
        remote.connector.send(remote.lease, EngineOrder(remote.epoch - 1, submit("late")))
        struck.let_go()
        wanted = {("front", "epoch"): 1, ("front", "lease"): 1, (remote.at.node, "epoch"): 1}
        await until(lambda: client.refusals == wanted)
        assert await work == expected
        assert not losses(client)


async def test_strangers_and_old_leases_are_refused_and_counted(tmp_path: Path) -> None:
    def says(at: HostAddress, context: ssl.SSLContext | None, *messages: object) -> list[object]:
        """Returns the answers of a host to some messages, up to the first that is no Beat."""
        frames, heard = FrameDecoder[FromHost](FromHost), []
        with socket.create_connection((at.address, at.port)) as plain:
            link = plain if context is None else context.wrap_socket(plain, server_hostname=PEER)
            with link:
                for message in messages:
                    link.sendall(encode_frame(message))
                while not heard and (data := link.recv(1 << 16)):
                    heard += [one for one in frames.feed(data) if not isinstance(one, Beat)]
        return heard

    with hosts(tmp_path, 1, "assemble_held") as (identity, (host,)):
        config = held(tmp_path)
        hello = Hello(1, "0.0.1", config.model_dump(mode="json"))
        ours = identity.client(host.at.certificate)
        (refused,) = await asyncio.to_thread(says, host.at, ours, hello)
        assert isinstance(refused, Failed)
        assert "0.0.1: install the same" in refused.message
        async with front(identity, config, host.at) as (client, fleet):
            struck = Struck(client, fleet, [host])
            work = await struck.under_way("asked")
            for stranger in (None, Identity.make("mallory").client(host.at.certificate)):
                with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                    assert await asyncio.to_thread(says, host.at, stranger, hello)
            again = Hello(1, __version__, config.model_dump(mode="json"))
            (old,) = await asyncio.to_thread(says, host.at, ours, again)
            assert isinstance(old, Failed)
            assert "lease 1 is over" in old.message
            struck.let_go()
            await work
            assert not losses(client)
            wanted = {"version": 1, "certificate": 2, "lease": 1}
            await until(lambda: client.remotes[0].refused == wanted)
            node = client.remotes[0].at.node
            told = {(node, reason): count for reason, count in wanted.items()}
            assert client.refusals == told
            client.remove(client.remotes[0].at.name)
            assert client.refusals == told, "of hosts that are gone, too"


async def test_a_config_that_cannot_be_served_ends_the_start(tmp_path: Path) -> None:
    with hosts(tmp_path, 1, "assemble_refused") as (identity, (host,)):
        client = FleetClient(CONFIG, Hosts(host.at), identity, None)
        with pytest.raises(UserError, match="no such model"):
            await client.start()
        await client.close()
