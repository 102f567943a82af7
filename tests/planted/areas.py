"""Areas of the code in which faults are planted, and how many of 120 each has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.planted import ROOT

NATIVE = "kernels"
"""The area of C++; all others are Python's."""


@dataclass(frozen=True)
class Area:
    """One area.  share: of 120 faults.  places: patterns of paths.  but: parts of paths that are left out.

    slow: files with tests of the long suite that run this code.
    """

    name: str
    share: int
    places: tuple[str, ...]
    but: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()

    def sources(self) -> list[str]:
        """Paths from the root, sorted."""
        found = {str(path.relative_to(ROOT)) for place in self.places for path in ROOT.glob(place)}
        return sorted(path for path in found if not any(part in path for part in self.but))


CACHES = ("kv_cache.py", "prefix_index.py")

PRIVATE_HERE = (
    "engine/loop/kv_",
    "engine/process/kv_",
    "engine/process/prefix_changes",
    "engine/assembly/sharing",
    "engine/assembly/snapshots",
)
"""Files of the engine that belong to the caches."""

AREAS = (
    Area(
        "scheduler",
        20,
        ("corepipe/scheduler/*.py",),
        CACHES,
        (
            "tests/scheduler/test_invariants.py",
            "tests/engine/test_queued_step.py",
            "tests/simulation/test_pipelines.py",
            "tests/test_batching.py",
        ),
    ),
    Area(
        "caches",
        12,
        (
            "corepipe/scheduler/*kv_cache.py",
            "corepipe/scheduler/prefix_index.py",
            *(f"corepipe/{place}*.py" for place in PRIVATE_HERE),
        ),
        (),
        ("tests/scheduler/test_invariants.py", "tests/test_batching.py", "tests/test_speculation_many.py"),
    ),
    Area(
        "engine",
        12,
        ("corepipe/engine/*/*.py", "corepipe/serving/supervision/*.py"),
        PRIVATE_HERE,
        (
            "tests/engine/test_queued_step.py",
            "tests/serving/supervision/test_supervisor.py",
            "tests/reliability/test_faults.py",
            "tests/test_batching.py",
            "tests/test_speculation_many.py",
        ),
    ),
    Area(
        "protocol",
        22,
        (
            "corepipe/serving/api/**/*.py",
            "corepipe/answers/**/*.py",
            "corepipe/structured/*.py",
            "corepipe/serving/*.py",
        ),
        (),
        (
            "tests/test_schemathesis.py",
            "tests/test_attacks.py",
            "tests/test_server.py",
            "tests/test_replay.py",
        ),
    ),
    Area(
        "checkpoints",
        12,
        ("corepipe/models/checkpoints/*.py", "corepipe/models/config.py", "corepipe/models/text/gguf_*.py"),
        (),
        ("tests/test_families.py", "tests/test_encoder_families.py", "tests/test_placement.py"),
    ),
    Area(
        "cost",
        14,
        (
            *(
                f"corepipe/neuron/{name}.py"
                for name in (
                    "timing/cost",
                    "timing/timeline",
                    "chips/engines",
                    "chips/rates",
                    "timing/rounds",
                    "timing/modes",
                    "compile/memory",
                )
            ),
            "corepipe/neuron/ops/costs.py",
        ),
        (),
        ("tests/test_placement.py", "tests/simulation/test_bridge.py"),
    ),
    Area(
        "planner",
        12,
        tuple(f"corepipe/{room}/*.py" for room in ("planning/planner", "simulation", "bench")),
        (),
        (
            "tests/planning/planner/test_bounds.py",
            "tests/planning/planner/test_planner.py",
            "tests/simulation/test_bridge.py",
            "tests/simulation/test_pipelines.py",
            "tests/bench/test_sweep.py",
            "tests/cli/test_bench.py",
        ),
    ),
    Area(
        NATIVE,
        16,
        tuple(f"corepipe/kernels/src/**/*.{kind}" for kind in ("cpp", "inl", "h")),
        # Of other ISAs than the one table that is built; and what says which CPU this is.
        ("avx512", "amx", "neon", "zmm", "sse2", "src/isa", "probe", "checked.h"),
        ("tests/kernels", "tests/test_batching.py", "tests/test_families.py"),
    ),
)


def shares(faults: int) -> dict[str, int]:
    """The number of `faults` for each area; the remainder of rounding goes to the largest areas."""
    whole = sum(area.share for area in AREAS)
    counts = {area.name: faults * area.share // whole for area in AREAS}
    for area in sorted(AREAS, key=lambda area: -area.share)[: faults - sum(counts.values())]:
        counts[area.name] += 1
    return counts


def area_of(name: str) -> Area:
    return next(area for area in AREAS if area.name == name)


def text_of(path: str, root: Path = ROOT) -> str:
    return (root / path).read_text(encoding="utf-8")
