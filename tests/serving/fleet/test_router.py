"""The host that a front chooses for a request, by the prefixes that its hosts report."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.loop import ReplicaView, choose_replica, load_margin
from corepipe.engine.messages import Prefixes, Submit
from corepipe.engine.process.prefix_changes import PrefixChanges
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler
from corepipe.serving.fleet.connector import HostAddress
from corepipe.serving.fleet.remote import RemoteHost
from corepipe.serving.fleet.router import HostRouter
from tests.engine.engine_support import scheduler_config

SIZE = 16
CONFIG = EngineConfig(model="none", block_size=SIZE, max_num_seqs=8)


@dataclass
class Machine:
    """A host that serves, and the caches of its engine's replicas."""

    remote: RemoteHost
    schedulers: list[Scheduler]
    news: PrefixChanges

    @classmethod
    def make(cls, slot: int, replicas: int, blocks: int) -> Machine:
        limits = scheduler_config(num_blocks=blocks, block_size=SIZE)
        news, schedulers = PrefixChanges(SIZE), [Scheduler(limits) for _ in range(replicas)]
        for scheduler in schedulers:
            scheduler.listen(news)
        remote = RemoteHost(HostAddress(f"h{slot}", f"n{slot}", "127.0.0.1", 1, ""), slot, epoch=0)
        return cls(remote, schedulers, news)

    def cached(self, request: Request) -> int:
        """Counts the tokens of its prompt, from the first on, that the replicas together have."""
        full = range((request.num_tokens - 1) // SIZE)
        keys = [request.block_key(number, SIZE) for number in full]
        for count, key in enumerate(keys):
            if not any(scheduler._kv.pool.find(key) is not None for scheduler in self.schedulers):
                return count * SIZE
        return len(keys) * SIZE

    def compute(self, request: Request, replica: int) -> None:
        scheduler = self.schedulers[replica]
        scheduler.add(request)
        while scheduler.unfinished:
            batch = scheduler.schedule()
            assert batch is not None
            scheduler.update(batch, [(0,) if chunk.samples else () for chunk in batch.chunks])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_front_chooses_as_if_it_looked_into_the_caches(seed: int) -> None:
    """Prompts have a few prefixes and two keys; blocks are so few that some are evicted; links are lost."""
    rng = random.Random(seed)
    machines = [
        Machine.make(slot, rng.randint(1, 2), rng.randint(8, 20)) for slot in range(rng.randint(2, 4))
    ]
    router, held = HostRouter(CONFIG), [set[bytes]() for _ in machines]
    for number in range(40):
        prompt = (
            [rng.randrange(2)] * SIZE + [rng.randrange(2)] * SIZE + [rng.randrange(3)] * rng.randint(1, SIZE)
        )
        salt = rng.choice(["", "of a key"])
        request = Request(str(number), prompt, rng.randint(1, 20), cache_salt=salt)
        for machine in machines:
            machine.remote.open = {f"other {n}" for n in range(rng.randint(0, 4))}
        views = [ReplicaView(machine.cached(request), len(machine.remote.open)) for machine in machines]
        chosen = router.choose(
            [machine.remote for machine in machines], Submit(request.id, prompt, 1, cache_salt=salt)
        )
        assert chosen is machines[choose_replica(views, load_margin(CONFIG.max_num_seqs))].remote
        machine = machines[chosen.slot]
        machine.compute(request, rng.randrange(len(machine.schedulers)))
        found = machine.news.take()
        if found is not None:
            held[chosen.slot].update(found.added)
            held[chosen.slot].difference_update(found.dropped)
            router.hear(chosen, found)
        if rng.random() < 0.1:
            lost = rng.choice(machines).remote
            router.forget(lost)
            router.begin(lost, b"".join(held[lost.slot]))


def test_prompts_that_begin_alike_and_come_at_once_go_to_one_host() -> None:
    """They follow the first before a host reports its blocks; a drained host gets none."""
    remotes = [Machine.make(slot, 1, 8).remote for slot in range(3)]
    router, prompt = HostRouter(CONFIG), [7] * (3 * SIZE)
    remotes[0].open = {"a"}
    first = router.choose(remotes, Submit("b", prompt, 1))
    assert first is remotes[1]
    first.open.add("b")
    assert router.choose(remotes, Submit("c", [*prompt, 8], 1)) is first
    first.draining = True
    assert router.choose(remotes, Submit("d", prompt, 1)) is remotes[2]


def test_what_a_host_has_no_more_does_not_call() -> None:
    remotes = [Machine.make(slot, 1, 8).remote for slot in range(2)]
    router, prompt = HostRouter(CONFIG), [7] * (3 * SIZE)
    keys = b"".join(router._keys(Submit("x", prompt, 1)))
    router.begin(remotes[1], keys)
    assert router.choose(remotes, Submit("a", prompt, 1)) is remotes[1]
    router.hear(remotes[1], Prefixes(removed=keys))
    assert router.choose(remotes, Submit("b", prompt, 1)) is remotes[0]


def test_without_a_prefix_cache_load_alone_decides() -> None:
    remotes = [Machine.make(slot, 1, 8).remote for slot in range(2)]
    router, prompt = HostRouter(CONFIG.model_copy(update={"prefix_cache": False})), [7] * (3 * SIZE)
    first = router.choose(remotes, Submit("a", prompt, 1))
    assert first is remotes[0]
    first.open.add("a")
    assert router.choose(remotes, Submit("b", prompt, 1)) is remotes[1]
