"""Predict what a workload would see of MODEL on an instance: latencies, throughput, cost.

Runs the server's own scheduler in virtual time; reads no weights.
"""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags import workload
from corepipe.cli.flags.options import MODEL, as_json
from corepipe.cli.flags.workload import RESULT, SIMULATED_REQUESTS, load, result


def flags() -> list[Parameter]:
    """Returns the flags."""
    from corepipe.cli.flags import fields  # noqa: PLC0415 -- heavy: the help of all commands does without

    return [
        MODEL,
        fields.timed_format(),
        *fields.of_engine(
            "max_model_len", "task", "instance", "lnc", "mode", *fields.DEGREES, "profile", "kernels"
        ),
        *fields.of_engine("max_num_seqs", "max_num_batched_tokens", "max_batch_delay", "policy"),
        fields.drafts(
            "Speculative decoding: several tokens are drafted for a step, and how many of them are accepted "
            "is assumed. JSON with vLLM's names: method, model, num_speculative_tokens, "
            "rejection_sample_method (synthetic), synthetic_acceptance_rates."
        ),
        *fields.of_engine("block_size", "num_blocks", "prefix_cache"),
        *fields.of_engine("max_queued_requests", "max_queued_tokens"),
        workload.RATE,
        *workload.GAPS,
        workload.users("--users"),
        workload.THINK_TIME,
        workload.requests("simulate", SIMULATED_REQUESTS),
        workload.DURATION,
        *workload.SIZES,
        workload.TURNS,
        *workload.ADAPTERS,
        *workload.TRACE,
        load("--write-trace", Path, "File to write the workload to, as a trace; nothing is simulated then."),
        workload.SEED,
        workload.SLO,
        as_json(RESULT),
        result("--output -o", Path, "File to write the result to, as JSON."),
        result("--plot", Path, "HTML page to write curves over time to."),
    ]
