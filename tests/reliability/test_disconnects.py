"""After clients leave, the server frees everything that it held for them."""

from __future__ import annotations

import pytest

from tests.reliability.disconnects import SMALL, phases, visited
from tests.servers import TINY, default_model, served


def test_two_hundred_clients_that_leave() -> None:
    with served(TINY, "--max-num-seqs", 4, anew=True) as server:
        done, wrong = visited(server, 200)
        assert wrong == []
        assert set(done) == set(phases("", 0))
        assert done.total() == 200
        assert not any("Traceback" in line for line in server.stderr)
        assert server.end() == 0


@pytest.mark.slow
def test_ten_thousand_clients_that_leave() -> None:
    with served(default_model(), *SMALL, anew=True) as server:
        done, wrong = visited(server, 10_000)
        print(done)
        assert wrong == []
        assert not any("Traceback" in line for line in server.stderr)
        assert done.total() == 10_000
