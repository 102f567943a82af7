"""Compares waking a model that sleeps with loading it: the time to the first token of a request, by medians.

`python -m benchmarks.wake [MODEL] [--times 15]`, MODEL being a directory of a model or a packaged one's name.
Each turn loads the model, lets it sleep and wakes it, on one server, so that all have the same moments of a
busy machine.  Before each measured request the spare process is given the time to do its imports.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from corepipe.models import hub
from tests.servers import Served, served, until

PAUSE_SECONDS = 4.0
"""Time for the imports of the spare process."""


def first_token(server: Served, name: str) -> float:
    """Returns the seconds until the first token of a streamed answer."""
    body = {"model": name, "prompt": "Hello", "max_tokens": 2, "temperature": 0, "stream": True}
    began = time.perf_counter()
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=600) as answer:
        assert answer.status_code == 200
        next(line for line in answer.iter_lines() if line.startswith("data: "))
        return time.perf_counter() - began


def control(admin: str, path: str, **body: str) -> None:
    """Asks the admin port for something, and waits until it is done."""
    httpx.post(f"{admin}{path}", json=body, timeout=600).raise_for_status()


def main() -> None:
    """Prints the medians, and the ratio of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--times", type=int, default=15)
    given = parser.parse_args()
    source = hub.resolve(given.model)
    loads, wakes = [], []
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / f"model{source.suffix}"
        (shutil.copytree if source.is_dir() else shutil.copy)(source, there)
        with served("--models-dir", folder, "--admin-port", 0, anew=True) as server:
            until(lambda: any("control: " in line for line in server.stderr))
            admin = next(line for line in server.stderr if "control: " in line).partition("control: ")[2]
            admin = admin.split(";")[0].strip()
            first_token(server, "model")  # packs the weights, once for all
            for _ in range(given.times):
                control(admin, "/models/unload", model="model")
                time.sleep(PAUSE_SECONDS)
                loads.append(first_token(server, "model"))
                control(admin, "/sleep")
                time.sleep(PAUSE_SECONDS)
                wakes.append(first_token(server, "model"))
    load, wake = statistics.median(loads), statistics.median(wakes)
    print(f"load: median {load:.2f} s of {sorted(round(one, 2) for one in loads)}")
    print(f"wake: median {wake:.2f} s of {sorted(round(one, 2) for one in wakes)}")
    print(f"wake / load: {wake / load:.2f}")


if __name__ == "__main__":
    main()
