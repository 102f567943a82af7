"""The work of `corepipe plan --buckets`: from lengths to the graphs to compile: text, a document, flags."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from corepipe.cli.flags.options import Given
from corepipe.cli.output.common import print_json, results
from corepipe.cli.output.tables import Figures, facts
from corepipe.errors import UserError
from corepipe.models.registry import Architecture, architecture
from corepipe.neuron.chips import profiles
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import Instance, hypothetical
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.memory import DeploymentLimits
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS, Format
from corepipe.neuron.timing.modes import RequestedDegrees, resolve
from corepipe.planning.buckets.bucketing import (
    MINUTES_SOURCE,
    BucketPlan,
    BucketRequest,
    Graphs,
    Padding,
    plan_buckets,
)
from corepipe.planning.planner.demand import RequestSizes
from corepipe.planning.planner.emit_vllm import is_native
from corepipe.planning.planner.planner import longest_request
from corepipe.planning.planner.space import BLOCK_SIZE
from corepipe.scheduler.defaults import MAX_NUM_SEQS
from corepipe.workload.lengths import Lengths
from corepipe.workload.traces import trace_workload
from corepipe.workload.workload import Synthetic, Workload

SCHEMA = "corepipe.buckets/1"

DEFAULT_REQUESTS = 2000
"""Drawn from --input-len and --output-len, unless --requests says how many."""

MOST_REQUESTS = 1_000_000

UNUSED = (
    "rate", "ttft", "tpot", "percentile", "margin", "prices", "max_error", "emit", "time_limit",
    "speculative_config", "kernel",
)  # fmt: skip
"""Flags of a search that lengths alone have no use for."""


def run(given: Given) -> None:
    """Chooses with these flags and prints the result.  Raises UserError for what cannot be compiled."""
    given.refuse(UNUSED, "has no effect with --buckets; leave it out")
    found = plan_buckets(_asked(given))
    if given["json"]:
        print_json(document(found, given["model"]))
    else:
        _print(found, given["model"])


def _asked(given: Mapping[str, Any]) -> BucketRequest:
    model = architecture(given["model"])
    if not model.graph(FORMATS["bf16"]).causal:
        raise UserError(f"{model.name} generates no tokens; --buckets is for models that do", "model")
    machine, own, fmt = (
        _instance(given),
        _one(given, "profile"),
        TIMED_FORMATS[_one(given, "dtype") or "bf16"],
    )
    stack = profiles.profile(own or ("vllm-neuron-native" if is_native(machine) else "vllm-neuron"))
    sizes = RequestSizes.of(_workload(given), given["requests"] or MOST_REQUESTS)
    longest = longest_request(model, sizes.longest, given["max_model_len"])
    batch = given["max_num_seqs"] or MAX_NUM_SEQS
    return BucketRequest(
        architecture=model,
        format=fmt,
        instance=machine,
        tensor=given["tensor"] or _fewest(model, fmt, machine, stack, (longest, batch)),
        profile=stack,
        batch=batch,
        longest=longest,
        prompts=sizes.prompts,
        answers=sizes.answers,
        graphs=given["graphs"],
    )


def _instance(given: Mapping[str, Any]) -> Instance:
    names = given["instance"] or []
    if len(names) != 1:
        raise UserError("--buckets: graphs are compiled for one size; give one --instance", "instance")
    found = find_instance(names[0])
    if found.family == "inf1":
        raise UserError(
            f"--instance {found.name}: --buckets is for vLLM, on inf2, trn1, trn2 or trn3", "instance"
        )
    return found


def _one(given: Mapping[str, Any], name: str) -> str | None:
    """Returns the only value of a flag that is repeatable; None where it is left out.  Raises UserError."""
    values = given[name] or []
    if len(values) > 1:
        raise UserError(f"--{name}: --buckets takes one", name)
    return values[0] if values else None


def _workload(given: Mapping[str, Any]) -> Workload:
    if given["trace"] is not None:
        schema = given["trace_format"]
        return trace_workload(given["trace"], schema and schema.value, limit=given["requests"])
    if given["trace_format"] is not None:
        raise UserError("--trace-format is of --trace; add that", "trace_format")
    return Synthetic(
        Lengths.parse(given["input_len"], "input-len"),
        Lengths.parse(given["output_len"], "output-len"),
        given["requests"] or DEFAULT_REQUESTS,
        users=1,
        seed=given["seed"],
    ).workload()


def _fewest(
    model: Architecture, fmt: Format, machine: Instance, stack: RuntimeProfile, sizes: tuple[int, int]
) -> int:
    """The smallest tensor degree with which the model and one sequence fit."""
    longest, batch = sizes
    blocks = batch * -(-longest // BLOCK_SIZE)
    limits = DeploymentLimits(longest, batch, min(longest, 16384), BLOCK_SIZE, blocks, stack.kv_budget)
    graph = model.graph(fmt, longest)
    return resolve("throughput", graph, machine, limits, stack, RequestedDegrees(pipeline=1))[0].tensor


def document(found: BucketPlan, model: str) -> dict[str, object]:
    """The plan for machines: tokens, seconds, minutes."""
    asked, work = found.asked, found.compiling
    low, high = work.minutes
    return {
        "schema": SCHEMA,
        "emulated": True,
        **hypothetical(asked.instance),
        "model": asked.architecture.name,
        "instance": asked.instance.name,
        "tensor": asked.tensor,
        "dtype": asked.format.name,
        "profile": asked.profile.name,
        "max_model_len": asked.longest,
        "max_num_seqs": asked.batch,
        "requests": len(asked.prompts),
        "default": _graphs(found.default, found.default_padding),
        "chosen": _graphs(found.chosen, found.padding),
        "compile_minutes": {"from": low, "to": high, "source": MINUTES_SOURCE},
        "host_memory_bytes": asked.instance.host_memory_bytes,
        "weights_bytes_per_rank": work.weights,
        "warnings": list(found.warnings),
        "flags": flags(found, model),
    }


def _graphs(graphs: Graphs, padding: Padding) -> dict[str, object]:
    return {
        "graphs": graphs.number,
        "prefill_buckets": list(graphs.prefill),
        "chunked": graphs.chunk is not None,
        "decode_context_buckets": list(graphs.decode),
        "decode_sequence_buckets": list(graphs.sequences),
        "padding": {**asdict(padding), "tokens": padding.waste},
    }


def flags(found: BucketPlan, model: str) -> list[str]:
    """Arguments of `vllm serve` that compile these graphs."""
    asked, graphs = found.asked, found.chosen
    named: dict[str, object] = {
        "--tensor-parallel-size": asked.tensor,
        "--max-model-len": asked.longest,
        "--max-num-seqs": asked.batch,
    }
    if is_native(asked.instance):
        config: dict[str, object] = {
            "num_batched_tokens_buckets": list(graphs.prefill),
            "num_seqs_buckets": list(graphs.sequences),
        }
        if graphs.chunk is not None:
            config["kv_segment_size_buckets"] = [graphs.chunk]
        if len(graphs.decode) > 1:
            config["decode_context_length_buckets"] = list(graphs.decode[:-1])
        named["--max-num-batched-tokens"] = graphs.chunk or asked.longest
        named["--additional-config"] = json.dumps({"neuron_config": config})
    else:
        config = {
            "enable_bucketing": True,
            "context_encoding_buckets": list(graphs.prefill),
            "token_generation_buckets": list(graphs.decode),
        }
        named["--additional-config"] = json.dumps({"override_neuron_config": config})
    return [model, *(str(part) for pair in named.items() for part in pair)]


def _print(found: BucketPlan, model: str) -> None:
    console, asked = results(), found.asked
    console.print(
        f"{asked.architecture.name}, {asked.format.name}, on {asked.instance.name} "
        f"({asked.instance.standing}, profile {asked.profile.name}): tensor {asked.tensor}, "
        f"{len(asked.prompts)} requests of up to {asked.longest} tokens, decode steps of {asked.batch}"
    )
    if asked.instance.hypothetical:
        console.print(f"hypothetical: {asked.instance.hypothetical}", style="yellow")
    console.print(_table(found))
    console.print(facts(_facts(found)))
    for warning in found.warnings:
        console.print(f"- {warning}")
    console.print(f"vllm serve {shlex.join(flags(found, model))}", soft_wrap=True)


def _table(found: BucketPlan) -> Figures:
    rows = (
        (
            name,
            str(graphs.number),
            _share(padding.prompt_waste, padding.prompt_tokens),
            _share(padding.decode_waste, padding.decode_tokens),
            f"{padding.seconds:,.1f}",
            f"{padding.wasted_seconds / padding.seconds:.0%}",
        )
        for name, graphs, padding in (
            ("default", found.default, found.default_padding),
            ("chosen", found.chosen, found.padding),
        )
    )
    figures = (">graphs", ">of prompts", ">of contexts", ">seconds", ">of that padding")
    return Figures("padding", *figures, rows=rows, pad_edge=False)


def _share(wasted: float, there: float) -> str:
    return f"{wasted / (wasted + there):.1%}" if wasted + there else "-"


def _facts(found: BucketPlan) -> Iterator[tuple[str, str]]:
    for name, graphs in (("default", found.default), ("chosen", found.chosen)):
        how = f"prompts in chunks of {graphs.chunk}" if graphs.chunk else f"prompts {_list(graphs.prefill)}"
        several = f", each for {_list(graphs.sequences)} sequences" if graphs.sequences else ""
        yield name, f"{how}; contexts {_list(graphs.decode)}{several}"
    low, high = found.compiling.minutes
    yield (
        "compiling",
        f"{low:.0f} to {high:.0f} minutes for {found.compiling.graphs} graphs ({MINUTES_SOURCE})",
    )
    yield "host memory", "no formula is published; -9 as exit code is a host out of memory, -O3 takes more"
    yield "cache", "another tensor degree, batch, length or SDK compiles anew"


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
