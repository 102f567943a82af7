"""The flags of the commands, named as vLLM's where the meaning is the same."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from corepipe.engine.sizes import read_bytes

MODEL = "Model"
DEVICE = "Emulated device"
BATCHING = "Batching"


class Dtype(StrEnum):
    INT8 = "int8"
    INT8_WEIGHTS = "int8-weights"
    INT4_WEIGHTS = "int4-weights"
    BF16 = "bf16"
    FP32 = "fp32"


class BitsChoice(StrEnum):
    FAST = "fast"
    SAME = "same"


class CacheDtype(StrEnum):
    AUTO = "auto"
    INT8 = "int8"


class TimedDtype(StrEnum):
    INT8 = "int8"
    INT8_WEIGHTS = "int8-weights"
    INT4_WEIGHTS = "int4-weights"
    BF16 = "bf16"
    FP32 = "fp32"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"


class Mode(StrEnum):
    AUTO = "auto"
    LATENCY = "latency"
    THROUGHPUT = "throughput"


class ClockChoice(StrEnum):
    HOST = "host"
    DEVICE = "device"


class Task(StrEnum):
    AUTO = "auto"
    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"
    SCORE = "score"


class PolicyChoice(StrEnum):
    MIXED = "mixed"
    SEGREGATED = "segregated"


class Emit(StrEnum):
    HELM = "helm"
    VLLM_NEURON = "vllm-neuron"


LOCAL_SERVER = "http://127.0.0.1:8000"
"""Where a server is that was started without flags."""


def option(*names: str, help: str, panel: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def _bytes(text: str) -> int:
    """Raises typer.BadParameter for what is no amount of memory."""
    try:
        return int(str(read_bytes(text)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Model = Annotated[
    str | None,
    typer.Argument(
        help="A directory or .gguf file, a hub id (org/name or org/name@revision), or nothing for "
        "SmolLM2-135M-Instruct."
    ),
]
ServerUrl = Annotated[str, typer.Argument(help="Of a running server.")]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", envvar="COREPIPE_API_KEY", help="The server's API key.")
]

Format = Annotated[
    Dtype,
    option(
        "--dtype",
        help="int8: INT8 weights and activations; int8-weights: bf16 compute; int4-weights: weights of four "
        "bits, INT8 activations.",
        panel=MODEL,
    ),
]
Bits = Annotated[
    BitsChoice,
    option(
        "--bits", help="same: tokens and logprobs are the same on every CPU; somewhat slower.", panel=MODEL
    ),
]
TimedFormat = Annotated[
    TimedDtype,
    option(
        "--dtype",
        help="int8: INT8 weights and activations; int8-weights: bf16 compute; int4-weights: weights of four "
        "bits, INT8 activations; fp8, mxfp8, mxfp4: of devices alone.",
        panel=MODEL,
    ),
]
MaxModelLen = Annotated[
    int | None, option("--max-model-len", help="Longest prompt plus answer, in tokens.", panel=MODEL, min=2)
]
TaskOption = Annotated[
    Task,
    option("--task", help="What is made of texts; auto: what the model was made for.", panel=MODEL),
]
Seed = Annotated[int, option("--seed", help="Seed of requests that bring none.", panel=MODEL)]

Instance = Annotated[
    str, option("--instance", help="The inf1, inf2, trn1, trn2 or trn3 size to emulate.", panel=DEVICE)
]
ModeOption = Annotated[
    Mode, option("--mode", help="What to place the model for; explicit degrees win.", panel=DEVICE)
]
Pipeline = Annotated[
    int | None,
    option(
        "--pipeline", "--pipeline-parallel-size", help="Stages of consecutive layers.", panel=DEVICE, min=1
    ),
]
Tensor = Annotated[
    int | None,
    option("--tensor", "--tensor-parallel-size", help="Cores that share each layer.", panel=DEVICE, min=1),
]
Data = Annotated[
    int | None,
    option("--data", "--data-parallel-size", help="Replicas of the whole model.", panel=DEVICE, min=1),
]
Expert = Annotated[
    int | None,
    option("--expert", help="Cores of a stage that divide a mixture's experts.", panel=DEVICE, min=1),
]
Clock = Annotated[
    ClockChoice,
    option("--clock", help="host: as fast as it can; device: at the device's pace.", panel=DEVICE),
]
TimingModel = Annotated[
    str | None,
    option(
        "--timing-model",
        help="Time, memory and limits are this model's: a config.json, or a name such as llama-3.1-70b.",
        panel=DEVICE,
    ),
]
TimeScale = Annotated[
    float, option("--time-scale", help="Host seconds for one second of the device clock.", panel=DEVICE)
]
Profile = Annotated[
    str | None,
    option("--profile", help="The device's software stack: a name, or a profile file.", panel=DEVICE),
]

MaxNumSeqs = Annotated[
    int, option("--max-num-seqs", help="Most sequences in a batch.", panel=BATCHING, min=1, max=1024)
]
MaxBatchedTokens = Annotated[
    int,
    option("--max-num-batched-tokens", help="Most tokens in a batch.", panel=BATCHING, min=16, max=16384),
]
MaxBatchDelay = Annotated[
    float,
    option(
        "--max-batch-delay",
        help="Seconds that a batch of a model that generates nothing waits to be full.",
        panel=BATCHING,
        min=0,
        max=60,
    ),
]
Policy = Annotated[
    PolicyChoice | None,
    option(
        "--policy",
        help="mixed: prefill beside decode; segregated: as Neuron's stack; default: the profile's.",
        panel=BATCHING,
    ),
]
BlockSize = Annotated[
    int, option("--block-size", help="Positions in a KV block (16, 32, ...).", panel=BATCHING)
]
NumBlocks = Annotated[
    int | None,
    option("--num-blocks", help="KV blocks of a replica; default: what fits.", panel=BATCHING, min=1),
]
KVCacheBytes = Annotated[
    int | None,
    option(
        "--kv-cache-memory-bytes",
        help="Host memory for the KV blocks of all replicas, as 2GiB; default: 1 GiB, or half the memory "
        "where the device's limits count.",
        panel=BATCHING,
        parser=_bytes,
        metavar="BYTES",
    ),
]
KVCacheDtype = Annotated[
    CacheDtype,
    option(
        "--kv-cache-dtype",
        help="What the host keeps keys and values as; auto: as they are computed; int8: half of that. No "
        "device has it: times and memory are those of auto.",
        panel=BATCHING,
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    option(
        "--speculative-config",
        help="Guess how answers go on, so that they come sooner and are the same. JSON in vLLM's names: "
        "method (ngram, draft_model), model, num_speculative_tokens, prompt_lookup_min, prompt_lookup_max; "
        "of the device alone: rejection_sample_method (synthetic), synthetic_acceptance_rates.",
        metavar="JSON",
        panel=BATCHING,
    ),
]
AssumedGuesses = Annotated[
    str | None,
    option(
        "--speculative-config",
        help="Guess several tokens a step, and assume how often that is right. JSON in vLLM's names: method, "
        "model, num_speculative_tokens, rejection_sample_method (synthetic), synthetic_acceptance_rates.",
        metavar="JSON",
        panel=BATCHING,
    ),
]
PrefixCaching = Annotated[
    bool,
    option(
        "--enable-prefix-caching/--no-enable-prefix-caching", help="Reuse shared prefixes.", panel=BATCHING
    ),
]
KVEvents = Annotated[
    str | None,
    option(
        "--kv-events-config",
        help="Publish what the prefix cache stores and removes, as vLLM's JSON says; "
        "needs corepipe\\[kv-events].",
        panel=BATCHING,
    ),
]
MaxQueuedReqs = Annotated[
    int, option("--max-num-queued-reqs", help="Requests that may wait.", panel=BATCHING, min=1)
]
MaxQueuedTokens = Annotated[
    int, option("--max-num-queued-tokens", help="Prompt tokens that may wait.", panel=BATCHING, min=1)
]
Threads = Annotated[
    int | None,
    option(
        "--threads",
        help="Host threads to compute on; default: the CPUs that affinity and control groups allow.",
        panel=BATCHING,
        min=1,
        max=1024,
    ),
]
