"""The flags of the commands, named as vLLM's where the meaning is the same."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

SERVER = "Server"
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


class Otherwise(StrEnum):
    REFUSE = "refuse"
    COMPUTE = "compute"
    RECORD = "record"


class Pace(StrEnum):
    NONE = "none"
    RECORDED = "recorded"


class Emit(StrEnum):
    HELM = "helm"
    VLLM_NEURON = "vllm-neuron"


LOCAL_SERVER = "http://127.0.0.1:8000"
"""Where a server is that was started without flags."""


def _option(*names: str, help: str, panel: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Model = Annotated[
    str | None,
    typer.Argument(
        help="A directory or .gguf file, a hub id (org/name or org/name@revision), or nothing for "
        "SmolLM2-135M-Instruct."
    ),
]
Host = Annotated[str, _option("--host", help="Address to listen on.", panel=SERVER)]
Port = Annotated[
    int, _option("--port", help="Port to listen on; 0 picks a free one.", panel=SERVER, min=0, max=65535)
]
ApiKeys = Annotated[
    list[str] | None,
    _option(
        "--api-key", help="Key that clients must send (repeatable).", panel=SERVER, envvar="COREPIPE_API_KEY"
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    _option("--api-key-file", help="File of further keys, or of their sha256:HEX.", panel=SERVER),
]
MaxRequestsPerKey = Annotated[
    int | None,
    _option("--max-requests-per-key", help="Requests that a key may have in flight.", panel=SERVER, min=1),
]
MaxTokensPerKey = Annotated[
    int | None,
    _option(
        "--max-tokens-per-minute-per-key", help="Tokens a minute that a key may use.", panel=SERVER, min=1
    ),
]
AdminHost = Annotated[str, _option("--admin-host", help="Address of the admin port.", panel=SERVER)]
AdminPort = Annotated[
    int | None,
    _option(
        "--admin-port",
        help="Port of metrics, placement and control, which then leave the public one; 0 picks a free one.",
        panel=SERVER,
        min=0,
        max=65535,
    ),
]
AdminApiKeys = Annotated[
    list[str] | None,
    _option(
        "--admin-api-key",
        help="Key that the admin port wants (repeatable).",
        panel=SERVER,
        envvar="COREPIPE_ADMIN_API_KEY",
    ),
]
MetricsHost = Annotated[str, _option("--metrics-host", help="Address of the port of metrics.", panel=SERVER)]
MetricsPort = Annotated[
    int | None,
    _option(
        "--metrics-port",
        help="Port of /metrics and health without a key, for who cannot send one; 0 picks a free one.",
        panel=SERVER,
        min=0,
        max=65535,
    ),
]
SslCertfile = Annotated[
    Path | None, _option("--ssl-certfile", help="Certificate chain in PEM: serve HTTPS.", panel=SERVER)
]
SslKeyfile = Annotated[
    Path | None,
    _option("--ssl-keyfile", help="Its key in PEM; default: in the same file.", panel=SERVER),
]
MaxConnections = Annotated[
    int, _option("--max-connections", help="Most connections that may be open.", panel=SERVER, min=1)
]
AllowedOrigins = Annotated[
    list[str] | None,
    _option(
        "--allowed-origin",
        help="Origin whose web pages may use the server, as https://ui.example (repeatable); * needs keys.",
        panel=SERVER,
    ),
]
ServerUrl = Annotated[str, typer.Argument(help="Of a running server.")]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", envvar="COREPIPE_API_KEY", help="The server's API key.")
]
Insecure = Annotated[
    bool, _option("--insecure", help="Listen beyond loopback without API keys.", panel=SERVER)
]
ServedNames = Annotated[
    list[str] | None,
    _option("--served-model-name", help="Name in the API (repeatable; the first is reported).", panel=SERVER),
]
Also = Annotated[
    list[str] | None,
    _option(
        "--also",
        help="A further model and what is its own, as NAME=PATH,dtype=fp32,threads=2 (repeatable).",
        panel=SERVER,
    ),
]
ChatTemplate = Annotated[
    Path | None,
    _option("--chat-template", help="Jinja file that replaces the model's chat template.", panel=SERVER),
]
TrustRequestTemplate = Annotated[
    bool,
    _option(
        "--trust-request-chat-template",
        help="Let requests bring a chat template of their own; it runs in a sandbox.",
        panel=SERVER,
    ),
]
SpecialTokensInText = Annotated[
    bool,
    _option(
        "--allow-special-tokens-in-text",
        help="Let chat messages spell special tokens, such as </s>, which are text otherwise.",
        panel=SERVER,
    ),
]
ToolCallParser = Annotated[
    str,
    _option(
        "--tool-call-parser",
        help="How the model writes tool calls: hermes, qwen3_coder, llama3_json, pythonic, mistral or "
        "another of docs/tools.md; none: not read; auto: as its files say.",
        panel=SERVER,
    ),
]
ReasoningParser = Annotated[
    str,
    _option(
        "--reasoning-parser",
        help="How the model writes its reasoning: qwen3, deepseek_r1, smollm3 or mistral; none: not told "
        "from text; auto: as its files say.",
        panel=SERVER,
    ),
]
Verify = Annotated[
    bool,
    _option(
        "--verify", help="Compare the model's files with their known hashes before loading.", panel=SERVER
    ),
]
ShutdownTimeout = Annotated[
    float,
    _option(
        "--shutdown-timeout",
        help="Seconds that answers under way have when the server ends.",
        panel=SERVER,
        min=0,
        max=86_400,
    ),
]
Record = Annotated[
    Path | None,
    _option("--record", help="Write each exchange with a client into this directory.", panel=SERVER),
]
RecordRedact = Annotated[
    Path | None,
    _option(
        "--record-redact", help="TOML rules of what is replaced before anything is written.", panel=SERVER
    ),
]
Replay = Annotated[
    Path | None,
    _option("--replay", help="Answer from the exchanges that were recorded there.", panel=SERVER),
]
ReplayElse = Annotated[
    Otherwise,
    _option(
        "--replay-else",
        help="What is not recorded: refuse (no model is loaded), compute, or compute and record it.",
        panel=SERVER,
    ),
]
ReplayPace = Annotated[
    Pace, _option("--replay-pace", help="none: at once; recorded: when it came then.", panel=SERVER)
]
TracesEndpoint = Annotated[
    str | None,
    _option(
        "--otlp-traces-endpoint",
        help="Send OpenTelemetry traces there, by OTLP over HTTP; needs corepipe\\[tracing].",
        panel=SERVER,
    ),
]
Inject = Annotated[
    str | None,
    _option(
        "--inject",
        help="Faults for clients to try their retries on, as 429:5%,cut-stream:1%,slow:2%@500ms.",
        panel=SERVER,
    ),
]
InjectWithKeys = Annotated[
    bool, _option("--inject-with-keys", help="Inject faults even where API keys mean users.", panel=SERVER)
]
MaxQueueSeconds = Annotated[
    float | None,
    _option(
        "--max-queue-seconds",
        help="Longest wait of a request before it is computed; default: as long as it takes.",
        panel=SERVER,
        max=86_400,
    ),
]

FleetAddress = Annotated[
    str | None,
    _option(
        "--fleet",
        help="Compute on the machines of the fleet whose head is at HOST:PORT; needs corepipe\\[ray].",
        panel=SERVER,
    ),
]
Replicas = Annotated[
    int | None, _option("--replicas", help="Machines of the fleet that serve.", panel=SERVER, min=1, max=64)
]
MaxReplicas = Annotated[
    int | None,
    _option(
        "--max-replicas",
        help="Machines that serve at most, where the queue asks for more; default: --replicas.",
        panel=SERVER,
        min=1,
        max=64,
    ),
]
ServedSlo = Annotated[
    str | None,
    _option(
        "--slo",
        help="Add machines, up to --max-replicas, where too few answers meet it: 'ttft:500ms tpot:50ms'.",
        panel=SERVER,
    ),
]

Format = Annotated[
    Dtype,
    _option(
        "--dtype",
        help="int8: INT8 weights and activations; int8-weights: bf16 compute; int4-weights: weights of four "
        "bits, INT8 activations.",
        panel=MODEL,
    ),
]
Bits = Annotated[
    BitsChoice,
    _option(
        "--bits", help="same: tokens and logprobs are the same on every CPU; somewhat slower.", panel=MODEL
    ),
]
TimedFormat = Annotated[
    TimedDtype,
    _option(
        "--dtype",
        help="int8: INT8 weights and activations; int8-weights: bf16 compute; int4-weights: weights of four "
        "bits, INT8 activations; fp8, mxfp8, mxfp4: of devices alone.",
        panel=MODEL,
    ),
]
MaxModelLen = Annotated[
    int | None, _option("--max-model-len", help="Longest prompt plus answer, in tokens.", panel=MODEL, min=2)
]
TaskOption = Annotated[
    Task,
    _option("--task", help="What is made of texts; auto: what the model was made for.", panel=MODEL),
]
Seed = Annotated[int, _option("--seed", help="Seed of requests that bring none.", panel=MODEL)]

Instance = Annotated[
    str, _option("--instance", help="The inf1, inf2, trn1, trn2 or trn3 size to emulate.", panel=DEVICE)
]
ModeOption = Annotated[
    Mode, _option("--mode", help="What to place the model for; explicit degrees win.", panel=DEVICE)
]
Pipeline = Annotated[
    int | None,
    _option(
        "--pipeline", "--pipeline-parallel-size", help="Stages of consecutive layers.", panel=DEVICE, min=1
    ),
]
Tensor = Annotated[
    int | None,
    _option("--tensor", "--tensor-parallel-size", help="Cores that share each layer.", panel=DEVICE, min=1),
]
Data = Annotated[
    int | None,
    _option("--data", "--data-parallel-size", help="Replicas of the whole model.", panel=DEVICE, min=1),
]
Expert = Annotated[
    int | None,
    _option("--expert", help="Cores of a stage that divide a mixture's experts.", panel=DEVICE, min=1),
]
Clock = Annotated[
    ClockChoice,
    _option("--clock", help="host: as fast as it can; device: at the device's pace.", panel=DEVICE),
]
TimingModel = Annotated[
    str | None,
    _option(
        "--timing-model",
        help="Time, memory and limits are this model's: a config.json, or a name such as llama-3.1-70b.",
        panel=DEVICE,
    ),
]
TimeScale = Annotated[
    float, _option("--time-scale", help="Host seconds for one second of the device clock.", panel=DEVICE)
]
Profile = Annotated[
    str | None,
    _option("--profile", help="The device's software stack: a name, or a profile file.", panel=DEVICE),
]

MaxNumSeqs = Annotated[
    int, _option("--max-num-seqs", help="Most sequences in a batch.", panel=BATCHING, min=1, max=1024)
]
MaxBatchedTokens = Annotated[
    int,
    _option("--max-num-batched-tokens", help="Most tokens in a batch.", panel=BATCHING, min=16, max=16384),
]
MaxBatchDelay = Annotated[
    float,
    _option(
        "--max-batch-delay",
        help="Seconds that a batch of a model that generates nothing waits to be full.",
        panel=BATCHING,
        min=0,
        max=60,
    ),
]
Policy = Annotated[
    PolicyChoice | None,
    _option(
        "--policy",
        help="mixed: prefill beside decode; segregated: as Neuron's stack; default: the profile's.",
        panel=BATCHING,
    ),
]
BlockSize = Annotated[
    int, _option("--block-size", help="Positions in a KV block (16, 32, ...).", panel=BATCHING)
]
NumBlocks = Annotated[
    int | None,
    _option("--num-blocks", help="KV blocks of a replica; default: what fits.", panel=BATCHING, min=1),
]
KVCacheBytes = Annotated[
    int | None,
    _option(
        "--kv-cache-memory-bytes",
        help="Host memory for the KV blocks of all replicas; default: 1 GiB, or half the memory where the "
        "device's limits count.",
        panel=BATCHING,
        min=1,
    ),
]
KVCacheDtype = Annotated[
    CacheDtype,
    _option(
        "--kv-cache-dtype",
        help="What the host keeps keys and values as; auto: as they are computed; int8: half of that. No "
        "device has it: times and memory are those of auto.",
        panel=BATCHING,
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    _option(
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
    _option(
        "--speculative-config",
        help="Guess several tokens a step, and assume how often that is right. JSON in vLLM's names: method, "
        "model, num_speculative_tokens, rejection_sample_method (synthetic), synthetic_acceptance_rates.",
        metavar="JSON",
        panel=BATCHING,
    ),
]
PrefixCaching = Annotated[
    bool,
    _option(
        "--enable-prefix-caching/--no-enable-prefix-caching", help="Reuse shared prefixes.", panel=BATCHING
    ),
]
KVEvents = Annotated[
    str | None,
    _option(
        "--kv-events-config",
        help="Publish what the prefix cache stores and removes, as vLLM's JSON says; "
        "needs corepipe\\[kv-events].",
        panel=BATCHING,
    ),
]
MaxQueuedReqs = Annotated[
    int, _option("--max-num-queued-reqs", help="Requests that may wait.", panel=BATCHING, min=1)
]
MaxQueuedTokens = Annotated[
    int, _option("--max-num-queued-tokens", help="Prompt tokens that may wait.", panel=BATCHING, min=1)
]
Threads = Annotated[
    int | None,
    _option(
        "--threads",
        help="Host threads to compute on; default: the CPUs that affinity and control groups allow.",
        panel=BATCHING,
        min=1,
        max=1024,
    ),
]
