"""`corepipe pull`."""

from __future__ import annotations

import json
from pathlib import Path

from corepipe.models import hub
from tests.servers import TINY, default_model, run


def test_it_prints_where_the_model_is() -> None:
    path = default_model()
    pulled = run("pull")
    assert (pulled.returncode, Path(pulled.stdout.strip())) == (0, path)
    assert json.loads(run("pull", "--json").stdout) == {"model": hub.DEFAULT_MODEL, "path": str(path)}


def test_a_path_is_where_it_is() -> None:
    assert run("pull", TINY).stdout == f"{TINY}\n"
