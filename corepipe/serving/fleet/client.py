"""The engines of a fleet behind one client: one journal, and a replica on each host."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic

from msgspec.structs import replace

from corepipe.engine.batch.arrays import derive_seed
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Abort, Command, Failed, LoadProgress, Output, Outputs, Ready, Submit
from corepipe.errors import UserError
from corepipe.scheduler.request import FinishReason
from corepipe.serving.fleet.connector import Connector, HostAddress, LinkThread
from corepipe.serving.fleet.hosts import Fleet
from corepipe.serving.fleet.identity import Identity
from corepipe.serving.fleet.remote import RemoteHost, RequestHosts, difference
from corepipe.serving.fleet.router import HostRouter
from corepipe.serving.fleet.scaler import FleetLoad, Scaler
from corepipe.serving.fleet.slo_share import SloShare
from corepipe.serving.fleet.wire import Beat, FromHost, Gone, Loaded
from corepipe.serving.supervision.client import ENGINE_DIED, JournaledClient, OutputStream
from corepipe.serving.supervision.engine_process import EngineError
from corepipe.serving.supervision.stats import idle

UNREACHABLE_SECONDS = 5.0
"""The time after which a host that cannot be reached is replaced."""


SCALE_SECONDS = 1.0
"""The time between two looks at the load."""


class FleetClient(JournaledClient):
    """An engine on each of several hosts.  Requests that one host loses continue at once on another.

    `queue_seconds`: the longest that a request waits before anything is computed for it.  `scaler` chooses
    the number of hosts, also by `slo` if that is given; None: the number that the fleet starts with.
    """

    def __init__(
        self,
        config: EngineConfig,
        fleet: Fleet,
        identity: Identity,
        queue_seconds: float | None,
        scaler: Scaler | None = None,
        slo: SloShare | None = None,
    ) -> None:
        super().__init__(config, queue_seconds)
        self._refused: Counter[tuple[str, str]] = Counter()
        self._unauthenticated: dict[tuple[str, str], int] = {}
        self._fleet = fleet
        self._identity = identity
        self._remotes: dict[str, RemoteHost] = {}
        self._at = RequestHosts()
        self._router = HostRouter(config)
        self._restarts: Counter[str] = Counter(link=0, host=0)
        self._accepted = 0
        self._first: asyncio.Future[Ready] | None = None
        self._kind: Ready | None = None
        self._progress: Callable[[LoadProgress], None] = _ignore
        self._links: LinkThread | None = None
        self._scaler = scaler
        self._slo = slo or SloShare(None)
        self._scaling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def alive(self) -> bool:
        return any(remote.serves for remote in self._remotes.values())

    @property
    def restarting(self) -> bool:
        return self._kind is not None and not self._closed and not self.alive

    @property
    def restarts(self) -> Mapping[str, int]:
        return self._restarts

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """Counts of what was refused, by machine (or "front") and reason, hosts that are gone included."""
        found = self._refused + Counter(self._unauthenticated)
        for remote in self._remotes.values():
            found.update(remote.refusals())
        return found

    @property
    def certificate(self) -> str:
        """The front's certificate, in PEM, which hosts trust."""
        return self._identity.certificate

    @property
    def remotes(self) -> Sequence[RemoteHost]:
        """The hosts, in the order of their slots."""
        return sorted(self._remotes.values(), key=lambda remote: remote.slot)

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        """Waits until the first host serves; the others join when they have loaded."""
        self._progress = progress or _ignore
        self._first = asyncio.get_running_loop().create_future()
        self._links = LinkThread()
        await self._fleet.start(self)
        self._kind = await self._first
        self._watch_queue()
        if self._scaler is not None:
            self._scaling = asyncio.create_task(self._scale(self._scaler))
        return self._told()

    def submit(self, submit: Submit) -> OutputStream:
        """Submits a request with a seed of the front's: engines of their own would repeat seeds."""
        if submit.max_tokens and submit.sampling.seed is None:
            seed = derive_seed(self._config.seed, self._accepted)
            submit = replace(submit, sampling=replace(submit.sampling, seed=seed))
        self._accepted += 1
        stream = super().submit(submit)
        if submit.id in self._journal:
            self._slo.begin(submit.id, monotonic())
        return stream

    def abort(self, ids: Sequence[str]) -> None:
        self._journal.give_up(ids)
        self._command(Abort(list(ids)))
        aborted = FinishReason.ABORT.value
        self._finish([Output(name, finish_reason=aborted) for name in ids if name not in self._at])

    async def sleep(self) -> None:
        raise UserError("the engines of a fleet do not sleep: they belong to its hosts")

    async def close(self) -> None:
        self._closed = True
        await self._leave_queue()
        if self._scaling is not None:
            self._scaling.cancel()
            await asyncio.wait([self._scaling])
        for remote in list(self._remotes.values()):
            self._drop(remote)
        await self._fleet.close()
        if self._links is not None:
            await self._links.close()
        self._streams.fail(ENGINE_DIED)

    def add(self, at: HostAddress) -> None:
        """Connects to a host of the fleet, which loads."""
        if self._closed or at.name in self._remotes or self._links is None:
            return
        taken = {remote.slot for remote in self._remotes.values()}
        slot = next(number for number in range(len(taken) + 1) if number not in taken)
        remote = self._remotes[at.name] = RemoteHost(at, slot)
        context = self._identity.client(at.certificate)
        limits = {
            "max_queued_requests": self._config.max_queued_requests * MOST_HOSTS,
            "max_queued_tokens": self._config.max_queued_tokens * MOST_HOSTS,
        }  # the front limits how many requests may wait
        config = self._config.model_copy(update=limits).model_dump(mode="json")
        heard, down = partial(self.heard, remote), partial(self.down, remote)
        remote.connector = Connector(self._links, at, context, config, heard, down)
        self._given_up_unless_back(remote)

    def drain(self, name: str) -> None:
        """Gives a host no new requests; it is released when its open requests have ended."""
        remote = self._remotes.get(name)
        if remote is not None and not remote.draining:
            remote.draining = True
            _log().warning("draining host %s; its %d open requests finish there", name, len(remote.open))
            self._tell_placement()
            self._let_go(remote)

    def want(self, count: int) -> None:
        """Sets the number of hosts."""
        self._fleet.want(count)

    def work(self, wanted: int, now: float) -> FleetLoad:
        """Returns the load of the hosts.  wanted: the number of hosts that are wanted."""
        return FleetLoad(
            hosts=wanted,
            serving=sum(remote.takes for remote in self._remotes.values()),
            waiting=self._journal.waiting.requests,
            rate=self._drain.rate(now),
            open=len(self._journal),
            good=self._slo.share(now),
        )

    async def _scale(self, scaler: Scaler) -> None:
        """Checks each second whether the number of wanted hosts changes, and changes it."""
        wanted = scaler.least
        while True:
            await asyncio.sleep(SCALE_SECONDS)
            now = monotonic()
            before, wanted = wanted, scaler.wanted(self.work(wanted, now), now)
            if wanted != before:
                _log().warning("scaling the fleet from %d to %d hosts", before, wanted)
                self.want(wanted)
            serving = [remote for remote in self.remotes if remote.takes]
            if wanted < len(serving):
                self.drain(min(serving, key=lambda remote: len(remote.open)).at.name)

    def remove(self, name: str) -> None:
        """Drops a host that is gone from the fleet."""
        remote = self._remotes.get(name)
        if remote is not None:
            self._lose(remote, "host", "gone from the fleet")
            self._drop(remote)

    def report_unauthenticated(self, refused: Mapping[str, int]) -> None:
        """Takes how many requests without a token Ray has refused, by machine."""
        self._unauthenticated.update({(node, "no_token"): count for node, count in refused.items()})

    def fail(self, error: UserError) -> None:
        """Ends the start with an error: the fleet cannot give hosts."""
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)

    def heard(self, remote: RemoteHost, lease: int, messages: Sequence[FromHost]) -> None:
        """Takes messages of a host.  Those of a lease that is over are ignored."""
        for message in messages:
            if lease < remote.lease or self._remotes.get(remote.at.name) is not remote:
                self._refused[FRONT, "lease"] += 1
                return
            remote.lease = lease
            self._hear(remote, message)

    def down(self, remote: RemoteHost, lease: int, reason: str) -> None:
        """Takes the loss of the link to a host; later messages of that lease are ignored."""
        if reason in ("frame", "tampered"):
            self._refused[FRONT, reason] += 1
        if lease >= remote.lease and self._remotes.get(remote.at.name) is remote:
            remote.lease = lease + 1
            self._lose(remote, "link", f"link lost: {reason}")
            self._given_up_unless_back(remote)

    def _hear(self, remote: RemoteHost, message: FromHost) -> None:
        if isinstance(message, Outputs):
            self._news(remote, message)
        elif isinstance(message, Beat):
            remote.refused = message.refused
        elif isinstance(message, Loaded):
            self._loaded(remote, message)
        elif isinstance(message, Gone):
            if message.epoch == remote.epoch:
                self._lose(remote, message.reason, message.words, broke=message.reason != "killed")
        elif isinstance(message, Failed):
            self._failed(remote, message)
        else:
            self._progress(message)

    def _news(self, remote: RemoteHost, news: Outputs) -> None:
        if news.epoch != remote.epoch:
            self._refused[FRONT, "epoch"] += 1
            return
        fault = remote.fault_in(news)
        if fault is not None:
            self._refused[FRONT, fault] += 1
            self._reject(remote, fault)
            return
        if news.prefixes is not None:
            self._router.hear(remote, news.prefixes)
        remote.open.difference_update(out.id for out in news.outputs if out.finish_reason is not None)
        stats = None if news.stats is None else remote.numbered(news.stats)
        self._slo.take(news.outputs, monotonic())
        self._take(replace(news, outputs=self._at.with_machines(news.outputs), stats=stats))
        if remote.draining:
            self._let_go(remote)

    def _loaded(self, remote: RemoteHost, loaded: Loaded) -> None:
        kind = self._first_word()
        differs = None if kind is None else difference(kind, loaded.ready)
        if differs is not None:
            self._refused[FRONT, "differs"] += 1
            _log().error("host %s is refused and replaced: %s", remote.at.name, differs)
            self._replace(remote)
            return
        remote.load(loaded.epoch, loaded.ready)
        self._router.begin(remote, loaded.prefixes)
        self._slo.forget()
        _log().warning("host %s on machine %s serves", remote.at.name, remote.at.node)
        if self._first is not None and not self._first.done():
            self._first.set_result(loaded.ready)
        self._tell_placement()
        for submit in self._journal.submits():
            if submit.id not in self._at:
                self._command(submit)

    def _failed(self, remote: RemoteHost, failed: Failed) -> None:
        """Takes the failure of a host that cannot load or does not accept this front."""
        error = UserError(failed.message) if failed.user_error else EngineError(failed.message)
        _log().error("host %s failed and is replaced: %s", remote.at.name, failed.message)
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
        else:
            self._restarts["load"] += 1
        self._lose(remote, "load", failed.message)
        self._replace(remote)

    def _lose(self, remote: RemoteHost, reason: str, words: str, *, broke: bool = False) -> None:
        """Continues all requests of a host on other hosts."""
        served = remote.serves
        lost = remote.lose()
        self._router.forget(remote)
        self._at.lose(lost)
        if not served:
            return
        self._restarts[reason] += 1
        for stats in self.stats:
            if stats.replica // remote.replicas == remote.slot:
                super()._show(idle(stats))
        self._finish(self._journal.lose_engine(broke=broke, of=lost))
        again = self._journal.submits(lost)
        _log().warning("host %s lost (%s); its %d requests move to others", remote.at.name, words, len(again))
        for submit in again:
            self._command(submit)
        self._tell_placement()

    def _reject(self, remote: RemoteHost, fault: str) -> None:
        _log().error("host %s reported impossible outputs (%s) and is replaced", remote.at.name, fault)
        self._lose(remote, "link", fault)
        self._replace(remote)

    def _command(self, command: Command) -> None:
        """Sends a command to the host of its request; a new request to the best host, if any serves."""
        if isinstance(command, Submit):
            remote = self._router.choose(self.remotes, command)
            if remote is not None:
                self._at.give(command.id, remote)
                remote.submit(command)
        elif isinstance(command, Abort):
            for remote in self._remotes.values():
                if theirs := self._at.of(remote, command.ids):
                    remote.abort(theirs)

    def _finish(self, outputs: Sequence[Output]) -> None:
        self._slo.take(outputs, monotonic())
        super()._finish(self._at.with_machines(outputs))

    def _queues(self) -> int:
        return max(1, sum(remote.replicas for remote in self._remotes.values() if remote.serves))

    def _first_word(self) -> Ready | None:
        """Returns the Ready of the first host that served; all others must agree with it."""
        if self._kind is None and self._first is not None and self._first.done():
            return self._first.result()
        return self._kind

    def _tell_placement(self) -> None:
        """Reports the placement after the hosts or their states have changed, once the fleet serves."""
        if self._kind is not None and not self._closed:
            self.on_ready(self._told())

    def _told(self) -> Ready:
        """Returns the Ready of the fleet: that of the first host, with the list of hosts."""
        kind = self._first_word()
        assert kind is not None
        hosts = [remote.placement() for remote in self.remotes]
        return replace(kind, placement={**kind.placement, "hosts": hosts}, pid=0)

    def _given_up_unless_back(self, remote: RemoteHost) -> None:
        lease = remote.lease

        def look() -> None:
            away = remote.lease == lease and not remote.serves
            if away and self._remotes.get(remote.at.name) is remote and not self._closed:
                self._replace(remote)

        asyncio.get_running_loop().call_later(UNREACHABLE_SECONDS, look)

    def _let_go(self, remote: RemoteHost) -> None:
        if not remote.open:
            self._replace(remote)

    def _replace(self, remote: RemoteHost) -> None:
        self._drop(remote)
        self._fleet.replace(remote.at.name)

    def _drop(self, remote: RemoteHost) -> None:
        if self._remotes.pop(remote.at.name, None) is not None:
            self._router.forget(remote)
            self._refused.update(remote.refusals())
        if remote.connector is not None:
            remote.connector.close()
        self._tell_placement()


FRONT = "front"

MOST_HOSTS = 64
"""The most hosts of a front."""


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _ignore(_news: object) -> None:
    """Ignores a message."""
