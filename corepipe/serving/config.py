"""The configuration of a server: where it listens, to whom, and how it treats requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from corepipe.engine.config import FrozenModel
from corepipe.engine.flag import SERVER, Flag
from corepipe.serving.faults import RequestFault, parse_faults
from corepipe.serving.keys import digest_of

ReplayElse = Literal["refuse", "compute", "record"]
ReplayPace = Literal["none", "recorded"]

_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[1-9][0-9]{0,4}))?"
)


class ServerConfig(FrozenModel):
    """The configuration of the HTTP server: where it listens, and whom it answers.

    The keys are `api_keys` and those that the `api_key_file` holds when it is read; it always holds some.
    """

    host: Annotated[str, Flag(SERVER)] = Field(default="127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Flag(SERVER)] = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one."
    )
    api_keys: Annotated[tuple[str, ...], Flag(SERVER, ("--api-key",), envvar="COREPIPE_API_KEY")] = Field(
        default=(), description="API key that clients must send (repeatable)."
    )
    api_key_file: Annotated[Path | None, Flag(SERVER)] = Field(
        default=None, description="File with further API keys, or their sha256:HEX, one a line."
    )
    max_requests_per_key: Annotated[int | None, Flag(SERVER)] = Field(
        default=None, ge=1, description="Most requests that one API key may have under way."
    )
    max_tokens_per_minute_per_key: Annotated[int | None, Flag(SERVER)] = Field(
        default=None, ge=1, description="Most tokens that one API key may use in a minute."
    )
    admin_host: Annotated[str, Flag(SERVER)] = Field(
        default="127.0.0.1", description="Address of the admin port."
    )
    admin_port: Annotated[int | None, Flag(SERVER)] = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of metrics, placement and control, which the public port then no longer serves; "
        "0 picks a free one.",
    )
    admin_api_keys: Annotated[
        tuple[str, ...], Flag(SERVER, ("--admin-api-key",), envvar="COREPIPE_ADMIN_API_KEY")
    ] = Field(default=(), description="API key that the admin port asks for (repeatable).")
    metrics_host: Annotated[str, Flag(SERVER)] = Field(
        default="127.0.0.1", description="Address of the metrics port."
    )
    metrics_port: Annotated[int | None, Flag(SERVER)] = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port that serves /metrics and health without a key, for clients that cannot send one; "
        "0 picks a free one.",
    )
    ssl_certfile: Annotated[Path | None, Flag(SERVER)] = Field(
        default=None, description="Certificate chain in PEM: the server then speaks HTTPS."
    )
    ssl_keyfile: Annotated[Path | None, Flag(SERVER)] = Field(
        default=None, description="Private key of the certificate in PEM; default: in the file of the chain."
    )
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_file_bytes: Annotated[int, Flag(SERVER)] = Field(
        default=512 * 1024 * 1024, ge=1024, description="Most bytes of a file that a client uploads."
    )
    max_connections: Annotated[int, Flag(SERVER)] = Field(
        default=4096, ge=1, description="Most connections that may be open at once."
    )
    insecure: Annotated[bool, Flag(SERVER)] = Field(
        default=False, description="Allow to listen beyond loopback without API keys."
    )
    allowed_origins: Annotated[tuple[str, ...], Flag(SERVER, ("--allowed-origin",))] = Field(
        default=(),
        description="Origin whose web pages may use the server, such as https://ui.example (repeatable); * "
        "is for servers with API keys.",
    )
    served_model_names: Annotated[tuple[str, ...], Flag(SERVER, ("--served-model-name",))] = Field(
        default=(), description="Name of the model in the API (repeatable; responses report the first)."
    )
    chat_template: Annotated[str | None, Flag(SERVER, metavar="FILE", file=True, also=True)] = Field(
        default=None, description="File with a Jinja template that replaces the model's chat template."
    )
    trust_request_chat_template: Annotated[bool, Flag(SERVER, chart="trustRequestChatTemplate")] = Field(
        default=False,
        description="Let requests bring a chat template of their own; it runs in a sandbox.",
    )
    allow_special_tokens_in_text: Annotated[bool, Flag(SERVER, chart="allowSpecialTokensInText")] = Field(
        default=False,
        description="Let chat messages spell special tokens, such as </s>, which are plain text otherwise.",
    )
    strict: Annotated[bool, Flag(SERVER, chart="strict")] = Field(
        default=False,
        description="Refuse requests with settings that have no effect here; otherwise the header "
        "x-corepipe-ignored of the response lists these.",
    )
    tool_call_parser: Annotated[str, Flag(SERVER, also=True, chart="toolCallParser")] = Field(
        default="auto",
        description="Format in which the model writes tool calls: hermes, qwen3_coder, llama3_json, "
        "pythonic, mistral or another of docs/tools.md; none: they are not parsed; auto: as its files say.",
    )
    reasoning_parser: Annotated[str, Flag(SERVER, also=True, chart="reasoningParser")] = Field(
        default="auto",
        description="Format in which the model writes its reasoning: qwen3, deepseek_r1, smollm3 or "
        "mistral; none: it is part of the text; auto: as its files say.",
    )
    drop_hosted_tools: Annotated[bool, Flag(SERVER)] = Field(
        default=False,
        description="Leave tools out that servers of OpenAI or Anthropic run, such as web_search, instead of "
        "refusing the request; the response names them.",
    )
    verify: Annotated[bool, Flag(SERVER, chart="verify")] = Field(
        default=False, description="Compare the model's files with their known hashes before they are loaded."
    )
    shutdown_timeout: Annotated[float, Flag(SERVER, chart="drainSeconds")] = Field(
        default=5.0,
        ge=0,
        le=86_400,
        description="Seconds that running requests have to end when the server is stopped.",
    )
    record: Annotated[Path | None, Flag(SERVER)] = Field(
        default=None, description="Directory into which each exchange with a client is recorded."
    )
    replay: Annotated[Path | None, Flag(SERVER)] = Field(
        default=None, description="Directory of recorded exchanges that answer requests."
    )
    record_redact: Annotated[Path | None, Flag(SERVER)] = Field(
        default=None, description="TOML file with rules for what is replaced before an exchange is written."
    )
    replay_else: Annotated[ReplayElse, Flag(SERVER)] = Field(
        default="refuse",
        validate_default=True,
        description="Treatment of a request that was not recorded: refuse it (then no model is loaded), "
        "compute it, or compute and record it.",
    )
    replay_pace: Annotated[ReplayPace, Flag(SERVER)] = Field(
        default="none",
        validate_default=True,
        description="Pace of replayed answers. none: at once; recorded: as it was when they were recorded.",
    )
    store_dir: Annotated[Path | None, Flag(SERVER)] = Field(
        default=None,
        description="Directory of what clients store: responses, files, batches and completions; default: a "
        "temporary one, removed when the server ends.",
    )
    store_bytes: Annotated[int, Flag(SERVER)] = Field(
        default=2 * 1024**3,
        ge=1024 * 1024,
        description="Most bytes that one API key may store; the oldest things are removed for new ones.",
    )
    store_seconds: Annotated[int, Flag(SERVER)] = Field(
        default=30 * 86_400, ge=60, description="Seconds after which stored things are removed."
    )
    otlp_traces_endpoint: Annotated[str | None, Flag(SERVER, chart="tracing.otlpEndpoint")] = Field(
        default=None,
        description="URL of a collector that gets OpenTelemetry traces, by OTLP over HTTP; needs "
        "corepipe[tracing].",
    )
    inject: Annotated[tuple[RequestFault, ...], Flag(SERVER, metavar="FAULTS", chart="faults.inject")] = (
        Field(
            default=(),
            description="Faults that are injected, so that clients can test their retries: such as "
            "429:5%,cut-stream:1%,slow:2%@500ms.",
        )
    )
    inject_with_keys: Annotated[bool, Flag(SERVER, chart="faults.withKeys")] = Field(
        default=False,
        validate_default=True,
        description="Inject faults on a server with API keys, too, which has users to meet them.",
    )
    max_queue_seconds: Annotated[float | None, Flag(SERVER, chart="batching.maxQueueSeconds")] = Field(
        default=None,
        gt=0,
        le=86_400,
        description="Longest wait of a request before it is computed, in seconds; default: no limit.",
    )
    models_dirs: Annotated[tuple[Path, ...], Flag(SERVER, ("--models-dir",))] = Field(
        default=(),
        description="Directory of models that are loaded when a request names them (repeatable).",
    )
    max_models: Annotated[int, Flag(SERVER)] = Field(
        default=4,
        ge=1,
        le=64,
        description="Most models of --models-dir in memory at once; the least recently used one leaves for "
        "another, once its answers have ended.",
    )
    sleep_idle_seconds: Annotated[float | None, Flag(SERVER)] = Field(
        default=None,
        gt=0,
        le=30 * 86_400,
        description="Seconds without a request after which a model gives its memory back; the next request "
        "wakes it. Default: never.",
    )
    fleet: Annotated[str | None, Flag(SERVER)] = Field(
        default=None,
        description="Compute on the machines of the fleet whose head is at HOST:PORT; needs corepipe[ray].",
    )
    replicas: Annotated[int | None, Flag(SERVER)] = Field(
        default=None,
        ge=1,
        le=64,
        validate_default=True,
        description="Machines of the fleet that serve the model.",
    )
    max_replicas: Annotated[int | None, Flag(SERVER)] = Field(
        default=None,
        ge=1,
        le=64,
        description="Most machines that serve the model, when the queue is long; default: --replicas.",
    )
    slo: Annotated[str | None, Flag(SERVER)] = Field(
        default=None,
        description="Objectives of the answers, such as 'ttft:500ms tpot:50ms': machines are added, up to "
        "--max-replicas, when too few answers meet them.",
    )
    verbose: Annotated[bool, Flag(SERVER)] = Field(
        default=False,
        description="Print all that is known of the deployment when it starts, instead of a short summary.",
    )

    @property
    def has_api_keys(self) -> bool:
        return _has_keys(self.__dict__)

    @property
    def replays_alone(self) -> bool:
        """True where nothing is computed, so that no model is loaded."""
        return self.replay is not None and self.replay_else == "refuse"

    @property
    def recorded_into(self) -> tuple[Path | None, str]:
        """The directory of what is recorded, if anything is, and the flag that names it."""
        return (self.replay, "replay") if self.replay_else == "record" else (self.record, "record")

    @field_validator("max_models")
    @classmethod
    def _are_of_a_directory(cls, count: int, info: ValidationInfo) -> int:
        if count != cls.model_fields["max_models"].default and not info.data.get("models_dirs"):
            raise ValueError("goes with --models-dir: how many models of it may be in memory")
        return count

    @field_validator("fleet")
    @classmethod
    def _keeps_its_models(cls, fleet: str | None, info: ValidationInfo) -> str | None:
        if fleet is not None and (info.data.get("models_dirs") or info.data.get("sleep_idle_seconds")):
            raise ValueError(
                "a fleet serves one model, which never leaves: --models-dir and "
                "--sleep-idle-seconds are for a server without one"
            )
        return fleet

    @field_validator("replicas")
    @classmethod
    def _are_of_a_fleet(cls, count: int | None, info: ValidationInfo) -> int | None:
        if (count is None) != (info.data.get("fleet") is None):
            raise ValueError("goes with --fleet: how many hosts of it are to serve")
        return count

    @field_validator("max_replicas")
    @classmethod
    def _are_no_fewer(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("replicas")
        if most is not None and (least is None or most < least):
            raise ValueError("goes with --fleet and --replicas, and is no less")
        return most

    @field_validator("slo")
    @classmethod
    def _adds_hosts(cls, slo: str | None, info: ValidationInfo) -> str | None:
        if slo is not None and info.data.get("max_replicas") is None:
            raise ValueError("goes with --max-replicas: hosts are added where answers do not meet it")
        return slo

    @field_validator("replay")
    @classmethod
    def _records_or_replays(cls, folder: Path | None, info: ValidationInfo) -> Path | None:
        if folder is not None and info.data.get("record") is not None:
            raise ValueError("--record asks for everything anew; --replay-else record adds what is missing")
        return folder

    @field_validator("record_redact")
    @classmethod
    def _is_of_a_recording(cls, rules: Path | None, info: ValidationInfo) -> Path | None:
        if rules is not None and info.data.get("record") is None and info.data.get("replay") is None:
            raise ValueError("has no effect without --record or --replay")
        return rules

    @field_validator("replay_else", "replay_pace")
    @classmethod
    def _is_of_a_replay(cls, value: str, info: ValidationInfo) -> str:
        if value not in ("refuse", "none") and info.data.get("replay") is None:
            raise ValueError(f"{value} has no effect without --replay")
        return value

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _is_otlp_over_http(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 4317:
            raise ValueError(f"{url}: give the collector's OTLP/HTTP URL, as http://localhost:4318/v1/traces")
        return url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/traces"

    @field_validator("inject", mode="before")
    @classmethod
    def _read_faults(cls, value: object) -> object:
        return parse_faults(value) if isinstance(value, str) else value

    @field_validator("inject_with_keys")
    @classmethod
    def _users_do_not_meet_faults(cls, forced: bool, info: ValidationInfo) -> bool:
        if info.data.get("inject") and _has_keys(info.data) and not forced:
            raise ValueError("--inject makes requests fail, and API keys mean users: set this if they know")
        return forced

    @field_validator("api_keys", "admin_api_keys")
    @classmethod
    def _keys_are_keys(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        if not all(entries):
            raise ValueError("a key is empty")
        for entry in entries:
            digest_of(entry)
        return entries

    @field_validator("allowed_origins")
    @classmethod
    def _origins_are_what_browsers_send(
        cls, origins: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        for origin in origins:
            if origin == "*" and not _has_keys(info.data):
                raise ValueError("* lets every web page use a server without API keys: name the origins")
            if origin != "*" and not _is_origin(origin):
                raise ValueError(
                    f"{origin!r}: give an origin as browsers send it, such as https://ui.example:8443"
                )
        return origins

    @field_validator("max_requests_per_key", "max_tokens_per_minute_per_key")
    @classmethod
    def _limits_are_for_keys(cls, limit: int | None, info: ValidationInfo) -> int | None:
        if limit is not None and not _has_keys(info.data):
            raise ValueError("there are no keys (--api-key, --api-key-file)")
        return limit


def _has_keys(fields: Mapping[str, Any]) -> bool:
    return any(fields.get("api_keys", ())) or fields.get("api_key_file") is not None


def _is_origin(text: str) -> bool:
    """Tells whether a text is a scheme and a host in lower case, without a path or the scheme's default
    port."""
    found = _ORIGIN.fullmatch(text)
    return found is not None and (found["scheme"], found["port"]) not in (("http", "80"), ("https", "443"))
