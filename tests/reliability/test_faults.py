"""Engines that die and hang under a server's load: no answer is lost, doubled or changed."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from tests.constrained.longer import longer
from tests.reliability.faults import disturb, table
from tests.servers import TINY, default_model, served, until

SIGNALS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL]


def test_two_kills_and_a_hang_change_no_answer() -> None:
    with longer(TINY, 1024) as model, served(model, "--max-num-seqs", 4, spare=True) as server:
        recovery = asyncio.run(disturb(server, SIGNALS, workers=8, tokens=(50, 150), calm=12))
        assert recovery.clients is not None
        assert recovery.clients.wrong == []
        assert server.metric("corepipe_engine_restarts_total", 'reason="killed"') == 2
        assert server.metric("corepipe_engine_restarts_total", 'reason="hung"') == 1
        assert until(lambda: server.metric("corepipe_kv_blocks_held") == 0)
        assert server.end() == 0


@pytest.mark.slow
def test_many_kills_and_hangs_of_the_default_model() -> None:
    signals = random.Random(3).sample([signal.SIGKILL, signal.SIGSTOP], counts=[50, 50], k=100)
    with served(default_model(), spare=True) as server:
        recovery = asyncio.run(disturb(server, signals, workers=12, tokens=(20, 300), calm=24))
        print(table(recovery))
        assert recovery.clients is not None
        assert recovery.clients.wrong == []
        assert server.metric("corepipe_engine_restarts_total") == 100
        assert until(lambda: server.metric("corepipe_kv_blocks_held") == 0)
