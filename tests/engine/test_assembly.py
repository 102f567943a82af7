"""Deployments from settings: the host's part, the device's description, and their differences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig, validated
from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.driver import Driver
from corepipe.errors import UserError
from corepipe.neuron.timing.clock import PacedClock
from corepipe.neuron.timing.cost import StepShape
from tests.engine.engine_support import submit
from tests.servers import TINY
from tests.support import answers

LARGE = {"timing_model": "llama-3.1-70b", "instance": "trn1.32xlarge", "tensor": 32}
OTHER = {"timing_model": "llama-3.1-8b", "instance": "trn1.32xlarge", "tensor": 8}
"""A model as different from the served one as possible, and quickly compiled."""


@contextmanager
def assembled(cache: Path, **options: object) -> Iterator[Deployment]:
    config = validated(EngineConfig, {"model": str(TINY), "cache_dir": cache, "threads": 1, **options})
    deployment = assemble(config, lambda _what, _done: None)
    try:
        yield deployment
    finally:
        deployment.close()


def test_another_models_pace_and_limits(tmp_path: Path) -> None:
    with assembled(tmp_path, clock="device", time_scale=7.0, **LARGE) as deployment:
        placement = deployment.ready.placement
        assert placement["emulated"] is True
        assert (placement["model"], placement["timing_model"]) == ("llama3", "llama-3.1-70b")
        assert (placement["pipeline"], placement["tensor"], placement["data"]) == (1, 32, 1)
        assert placement["host"] == {"model": "llama3", "pipeline": 1, "tensor": 1, "data": 1}
        assert len(placement["cores"]) == 32
        assert (placement["clock"], placement["time_scale"]) == ("device", 7.0)
        assert isinstance(deployment.clock, PacedClock)
        assert deployment.clock.scale == 7.0
        seconds = deployment.replicas[0].timeline.submit(StepShape.decode(1, 100), 0.0).ready_at
        assert 0.005 < seconds < 0.1, "this is no time of a model with two layers"


def test_what_has_loaded_has_computed(tmp_path: Path) -> None:
    config = validated(EngineConfig, {"model": str(TINY), "cache_dir": tmp_path, "threads": 1})
    beats = np.zeros(1, np.int64)
    assemble(config, lambda _what, _done: None, beats).close()
    assert beats[0] > 0


def test_a_cache_of_int8_has_more_blocks_of_the_same_memory(tmp_path: Path) -> None:
    """Only the host has such a cache: no device has it, and the device's side of the placement does not
    change."""
    blocks, told = {}, {}
    for dtype in ("auto", "int8"):
        with assembled(tmp_path, format="fp32", kv_cache_bytes=1 << 20, kv_cache_dtype=dtype) as deployment:
            blocks[dtype], told[dtype] = deployment.ready.blocks, dict(deployment.ready.placement)
    each = told["auto"]["cores"][0]["kv_bytes_per_token"]
    layers_heads = each // (2 * 4 * 16)  # two vectors of 16 elements in fp32
    kept = layers_heads * 2 * (16 + 4)
    said = {name: told["int8"].pop(name) for name in ("kv_cache_dtype", "kv_cache_bytes_per_token")}
    assert said == {"kv_cache_dtype": "int8", "kv_cache_bytes_per_token": kept}
    assert told["int8"].pop("kv_cache_dtype_on_device") == "fp32"
    assert blocks["int8"] == (1 << 20) // (32 * kept) > blocks["auto"] == (1 << 20) // (32 * each)
    for differs in ("kv_blocks_per_replica", "host_limits"):
        told["int8"].pop(differs), told["auto"].pop(differs)
    assert told["int8"] == told["auto"]


def test_where_the_host_cannot_follow_it_is_said(tmp_path: Path) -> None:
    with assembled(tmp_path, clock="device", kv_cache_bytes=1 << 20, **OTHER) as deployment:
        ready = deployment.ready
        assert ready.max_model_len == 256, "the host's model has no more positions"
        positions, blocks = ready.placement["host_limits"]
        assert "8192" in positions
        assert "256" in positions
        assert str(ready.blocks) in blocks
        assert "--kv-cache-memory-bytes" in blocks
        assert deployment.replicas[0].scheduler.max_model_len == 256
        assert deployment.replicas[0].scheduler.num_blocks == ready.blocks
    with assembled(tmp_path, clock="device", max_model_len=256, num_blocks=64, **OTHER) as deployment:
        assert deployment.ready.placement["host_limits"] == []
        assert deployment.ready.blocks == 64


def test_the_device_has_the_blocks_of_the_model_that_is_timed(tmp_path: Path) -> None:
    """The blocks fill the rest of 16 GiB beside int8 weights of 8 billion, where each token takes 128 KiB."""
    options = {"timing_model": "llama-3.1-8b", "instance": "inf2.xlarge", "tensor": 1, "max_num_seqs": 256}
    with assembled(tmp_path, clock="device", **options) as deployment:
        blocks = deployment.replicas[0].scheduler.num_blocks
        assert 1500 < blocks < 2500
        assert deployment.replicas[0].scheduler.max_cached_blocks is None, "the device would keep them all"


def test_replicas_of_the_device_are_replicas_of_the_host(tmp_path: Path) -> None:
    with assembled(tmp_path, clock="device", data=2, pipeline=2, **{**OTHER, "tensor": 2}) as deployment:
        assert len(deployment.replicas) == 2
        assert deployment.ready.placement["host"]["data"] == 2
        assert deployment.ready.placement["host"]["pipeline"] == 1
        assert deployment.replicas[0].scheduler.stages == 2, "the device's, not the host's"


def test_tokens_are_the_served_models(tmp_path: Path) -> None:
    submits = [submit(f"r{i}", prompt=5 + i, max_tokens=8) for i in range(4)]
    with assembled(tmp_path) as alone:
        expected = {name: answer.tokens for name, answer in answers(Driver(alone), submits).items()}
    with assembled(tmp_path, clock="virtual", **OTHER) as timed:
        found = {name: answer.tokens for name, answer in answers(Driver(timed), submits).items()}
    assert found == expected


def refusal(tmp_path: Path, **options: object) -> str:
    with pytest.raises(UserError) as refused, assembled(tmp_path, **options):
        pass
    return refused.value.message


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"timing_model": "llama-3.1-70b", "instance": "inf2.xlarge"},
            "memory of inf2.xlarge; use --instance ",
        ),
        ({"timing_model": "llama-3.1-71b"}, "llama-3.1-70b"),
        ({"timing_model": "llama-3.1-71b"}, "--timing-model"),
        ({"timing_model": "bert-base"}, "no decoder"),
        ({"timing_model": "t5-small"}, "no decoder"),
        ({"timing_model": "smollm2-135m", "max_model_len": 10_000}, "8192 positions"),
        ({"profile": "no-such-stack"}, "vllm-neuron"),
        ({"time_scale": 2.0}, "--clock device"),
        ({"time_scale": 0.0, "clock": "device"}, "greater than 0"),
        ({"time_scale": float("inf"), "clock": "device"}, "finite"),
        ({"clock": "device", "num_blocks": 3, **OTHER}, "--num-blocks 3"),
    ],
)
def test_what_cannot_be(options: dict[str, object], named: str, tmp_path: Path) -> None:
    assert named in refusal(tmp_path, **options)


def test_the_profile_brings_the_policy(tmp_path: Path) -> None:
    def policies(**options: object) -> tuple[str, str]:
        with assembled(tmp_path, **options) as deployment:
            policy = deployment.replicas[0].policy
            return deployment.ready.placement["runtime_profile"], policy.__name__  # type: ignore[attr-defined]

    assert policies() == ("async", "mixed")
    assert policies(clock="device") == ("vllm-neuron", "segregated")
    assert policies(clock="device", profile="ideal") == ("ideal", "mixed")
    assert policies(clock="device", policy="mixed") == ("vllm-neuron", "mixed")


def test_threads_that_do_not_start_are_the_users_to_mend() -> None:
    """Each thread has a stack, and there is no address space for so many."""
    code = f"""
import resource
from corepipe import LLM
from corepipe.errors import UserError
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.RLIM_INFINITY))
try:
    LLM({str(TINY)!r}, threads=1000)
except UserError as error:
    print(error.param, error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("threads threads: only "), done.stderr
    assert "of 1000 threads could be started" in done.stdout
