"""The modules of `nki`, with the names that kernels import from them, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from corepipe.nki.core.recorder import current
from corepipe.nki.dialects.current import instructions, language, types
from corepipe.nki.dialects.current.tensor import Register
from corepipe.nki.dialects.kernels import Runner, decorator
from corepipe.nki.isa.base import ReduceCommand
from corepipe.nki.isa.select import LOWEST

TWO_CORES = "it joins the two cores of an LNC2 kernel, and one core is simulated"
MX = "products of packed MX types are not simulated"
RANDOM = "random numbers are those of the device"
MANY = "collectives join several cores, and one is simulated"
UNTIMED = "no cost of it is known"

REFUSED: Mapping[str, str] = {
    "sendrecv": TWO_CORES,
    **dict.fromkeys(("nc_matmul_mx", "quantize_mx"), MX),
    **dict.fromkeys(("rng", "dropout", "set_rng_seed", "rand_set_state", "rand_get_state", "rand2"), RANDOM),
    **dict.fromkeys(("activate2", "exponential", "topk"), UNTIMED),
}
"""Instructions that are there so that modules which name them load, and why calling one is refused."""

COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_v", "reduce_scatter", "all_to_all", "all_to_all_v", "rank_id",
    "collective_permute", "collective_permute_implicit", "collective_permute_implicit_reduce",
    "collective_permute_implicit_current_processing_rank_id",
)  # fmt: skip


def _refused(name: str, why: str) -> Callable[..., Any]:
    def function(*_: Any, **_named: Any) -> Any:
        raise current().refuse("missing", f"{name} is not simulated: {why}")

    function.__name__ = name.rpartition(".")[2]
    return function


def _constants() -> dict[str, Any]:
    return {
        "engine": types.EngineName,
        "reduce_cmd": ReduceCommand,
        "dge_mode": types.DgeMode,
        "oob_mode": types.OobMode,
        "matmul_perf_mode": types.PerfMode,
        "nc_version": types.NcVersion,
        "dma_engine": types.DmaEngine,
    }


def _isa() -> dict[str, Any]:
    public = {
        name: value
        for name, value in vars(instructions).items()
        if getattr(value, "__module__", "") == instructions.__name__ and not name.startswith(("_", "DONE"))
    }
    return {
        **{name: _refused(f"nisa.{name}", why) for name, why in REFUSED.items()},
        **public,
        **_constants(),
        **{f"{engine.name}_engine": engine for engine in types.EngineName},
        "fp32": SimpleNamespace(min=LOWEST),
        "get_nc_version": types.get_nc_version,
        "get_nc_sub_version": lambda: 0,
        "VirtualRegister": Register,
    }


class AnyTensor:
    """`tensor[128, 512]` in annotations."""

    def __class_getitem__(cls, key: Any) -> type[AnyTensor]:
        return cls


class ReplicaGroup:
    """Cores that a collective joins; kernels may make one."""

    def __init__(self, *_: Any, **_named: Any) -> None: ...


def modules(runner: Runner) -> dict[str, dict[str, Any]]:
    """Returns the names of each module, by its own name."""
    return {
        "nki": {
            **{mode: decorator(mode, runner, legacy=False) for mode in ("jit", "simulate")},
            "dtype": np.dtype,
        },
        "nki.typing": {"tensor": AnyTensor},
        "nki.language": language.names(),
        "nki.isa": _isa(),
        "nki.isa.constants": _constants(),
        "nki.collectives": {
            "ReplicaGroup": ReplicaGroup,
            **{name: _refused(f"ncc.{name}", MANY) for name in COLLECTIVES},
        },
    }
