"""The flags of a server: where it listens, to whom, under which names, and how it treats requests."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from corepipe.cli.flags.options import option

SERVER = "Server"


class Otherwise(StrEnum):
    REFUSE = "refuse"
    COMPUTE = "compute"
    RECORD = "record"


class Pace(StrEnum):
    NONE = "none"
    RECORDED = "recorded"


Host = Annotated[str, option("--host", help="Address to listen on.", panel=SERVER)]
Port = Annotated[
    int, option("--port", help="Port to listen on; 0 picks a free one.", panel=SERVER, min=0, max=65535)
]
ApiKeys = Annotated[
    list[str] | None,
    option(
        "--api-key", help="Key that clients must send (repeatable).", panel=SERVER, envvar="COREPIPE_API_KEY"
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    option("--api-key-file", help="File of further keys, or of their sha256:HEX.", panel=SERVER),
]
MaxRequestsPerKey = Annotated[
    int | None,
    option("--max-requests-per-key", help="Requests that a key may have in flight.", panel=SERVER, min=1),
]
MaxTokensPerKey = Annotated[
    int | None,
    option(
        "--max-tokens-per-minute-per-key", help="Tokens a minute that a key may use.", panel=SERVER, min=1
    ),
]
AdminHost = Annotated[str, option("--admin-host", help="Address of the admin port.", panel=SERVER)]
AdminPort = Annotated[
    int | None,
    option(
        "--admin-port",
        help="Port of metrics, placement and control, which then leave the public one; 0 picks a free one.",
        panel=SERVER,
        min=0,
        max=65535,
    ),
]
AdminApiKeys = Annotated[
    list[str] | None,
    option(
        "--admin-api-key",
        help="Key that the admin port wants (repeatable).",
        panel=SERVER,
        envvar="COREPIPE_ADMIN_API_KEY",
    ),
]
MetricsHost = Annotated[str, option("--metrics-host", help="Address of the port of metrics.", panel=SERVER)]
MetricsPort = Annotated[
    int | None,
    option(
        "--metrics-port",
        help="Port of /metrics and health without a key, for who cannot send one; 0 picks a free one.",
        panel=SERVER,
        min=0,
        max=65535,
    ),
]
SslCertfile = Annotated[
    Path | None, option("--ssl-certfile", help="Certificate chain in PEM: serve HTTPS.", panel=SERVER)
]
SslKeyfile = Annotated[
    Path | None,
    option("--ssl-keyfile", help="Its key in PEM; default: in the same file.", panel=SERVER),
]
MaxConnections = Annotated[
    int, option("--max-connections", help="Most connections that may be open.", panel=SERVER, min=1)
]
AllowedOrigins = Annotated[
    list[str] | None,
    option(
        "--allowed-origin",
        help="Origin whose web pages may use the server, as https://ui.example (repeatable); * needs keys.",
        panel=SERVER,
    ),
]
Insecure = Annotated[
    bool, option("--insecure", help="Listen beyond loopback without API keys.", panel=SERVER)
]
ServedNames = Annotated[
    list[str] | None,
    option("--served-model-name", help="Name in the API (repeatable; the first is reported).", panel=SERVER),
]
Also = Annotated[
    list[str] | None,
    option(
        "--also",
        help="A further model and what is its own, as NAME=PATH,dtype=fp32,threads=2 (repeatable).",
        panel=SERVER,
    ),
]
ChatTemplate = Annotated[
    Path | None,
    option("--chat-template", help="Jinja file that replaces the model's chat template.", panel=SERVER),
]
TrustRequestTemplate = Annotated[
    bool,
    option(
        "--trust-request-chat-template",
        help="Let requests bring a chat template of their own; it runs in a sandbox.",
        panel=SERVER,
    ),
]
SpecialTokensInText = Annotated[
    bool,
    option(
        "--allow-special-tokens-in-text",
        help="Let chat messages spell special tokens, such as </s>, which are text otherwise.",
        panel=SERVER,
    ),
]
Strict = Annotated[
    bool,
    option(
        "--strict",
        help="Refuse settings that would have no effect, which answers name in x-corepipe-ignored otherwise.",
        panel=SERVER,
    ),
]
ToolCallParser = Annotated[
    str,
    option(
        "--tool-call-parser",
        help="How the model writes tool calls: hermes, qwen3_coder, llama3_json, pythonic, mistral or "
        "another of docs/tools.md; none: not read; auto: as its files say.",
        panel=SERVER,
    ),
]
ReasoningParser = Annotated[
    str,
    option(
        "--reasoning-parser",
        help="How the model writes its reasoning: qwen3, deepseek_r1, smollm3 or mistral; none: not told "
        "from text; auto: as its files say.",
        panel=SERVER,
    ),
]
Verify = Annotated[
    bool,
    option(
        "--verify", help="Compare the model's files with their known hashes before loading.", panel=SERVER
    ),
]
ShutdownTimeout = Annotated[
    float,
    option(
        "--shutdown-timeout",
        help="Seconds that answers under way have when the server ends.",
        panel=SERVER,
        min=0,
        max=86_400,
    ),
]
Record = Annotated[
    Path | None,
    option("--record", help="Write each exchange with a client into this directory.", panel=SERVER),
]
RecordRedact = Annotated[
    Path | None,
    option(
        "--record-redact", help="TOML rules of what is replaced before anything is written.", panel=SERVER
    ),
]
Replay = Annotated[
    Path | None,
    option("--replay", help="Answer from the exchanges that were recorded there.", panel=SERVER),
]
ReplayElse = Annotated[
    Otherwise,
    option(
        "--replay-else",
        help="What is not recorded: refuse (no model is loaded), compute, or compute and record it.",
        panel=SERVER,
    ),
]
ReplayPace = Annotated[
    Pace, option("--replay-pace", help="none: at once; recorded: when it came then.", panel=SERVER)
]
TracesEndpoint = Annotated[
    str | None,
    option(
        "--otlp-traces-endpoint",
        help="Send OpenTelemetry traces there, by OTLP over HTTP; needs corepipe\\[tracing].",
        panel=SERVER,
    ),
]
Inject = Annotated[
    str | None,
    option(
        "--inject",
        help="Faults for clients to try their retries on, as 429:5%,cut-stream:1%,slow:2%@500ms.",
        panel=SERVER,
    ),
]
InjectWithKeys = Annotated[
    bool, option("--inject-with-keys", help="Inject faults even where API keys mean users.", panel=SERVER)
]
MaxQueueSeconds = Annotated[
    float | None,
    option(
        "--max-queue-seconds",
        help="Longest wait of a request before it is computed; default: as long as it takes.",
        panel=SERVER,
        max=86_400,
    ),
]

FleetAddress = Annotated[
    str | None,
    option(
        "--fleet",
        help="Compute on the machines of the fleet whose head is at HOST:PORT; needs corepipe\\[ray].",
        panel=SERVER,
    ),
]
Replicas = Annotated[
    int | None, option("--replicas", help="Machines of the fleet that serve.", panel=SERVER, min=1, max=64)
]
MaxReplicas = Annotated[
    int | None,
    option(
        "--max-replicas",
        help="Machines that serve at most, where the queue asks for more; default: --replicas.",
        panel=SERVER,
        min=1,
        max=64,
    ),
]
ServedSlo = Annotated[
    str | None,
    option(
        "--slo",
        help="Add machines, up to --max-replicas, where too few answers meet it: 'ttft:500ms tpot:50ms'.",
        panel=SERVER,
    ),
]
Verbose = Annotated[
    bool,
    option(
        "--verbose",
        help="Say at the start all that is known of the deployment, not the eight lines that a person needs.",
        panel=SERVER,
    ),
]
