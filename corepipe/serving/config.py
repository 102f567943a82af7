"""The configuration of a server: where it listens, to whom, and how it treats requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from corepipe.engine.config import FrozenModel
from corepipe.serving.faults import RequestFault, parse_faults
from corepipe.serving.keys import digest_of

ReplayElse = Literal["refuse", "compute", "record"]
ReplayPace = Literal["none", "recorded"]

_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[1-9][0-9]{0,4}))?"
)


class ServerConfig(FrozenModel):
    """How the HTTP server listens and whom it answers.

    The keys are `api_keys` and those that the `api_key_file` holds when it is read; it always holds some.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    admin_api_keys: tuple[str, ...] = ()
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    max_requests_per_key: int | None = Field(default=None, ge=1)
    max_tokens_per_minute_per_key: int | None = Field(default=None, ge=1)
    allowed_origins: tuple[str, ...] = ()
    insecure: bool = False
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    served_model_names: tuple[str, ...] = ()
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_connections: int = Field(default=4096, ge=1)
    shutdown_timeout: float = Field(default=5.0, ge=0, le=86_400)
    max_queue_seconds: float | None = Field(default=None, gt=0, le=86_400)
    chat_template: str | None = None
    trust_request_chat_template: bool = False
    allow_special_tokens_in_text: bool = False
    strict: bool = False
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    verify: bool = False
    record: Path | None = None
    replay: Path | None = None
    record_redact: Path | None = None
    replay_else: ReplayElse = Field(default="refuse", validate_default=True)
    replay_pace: ReplayPace = Field(default="none", validate_default=True)
    otlp_traces_endpoint: str | None = None
    inject: tuple[RequestFault, ...] = ()
    inject_with_keys: bool = Field(default=False, validate_default=True)
    fleet: str | None = None
    replicas: int | None = Field(default=None, ge=1, le=64, validate_default=True)
    max_replicas: int | None = Field(default=None, ge=1, le=64)
    slo: str | None = None
    verbose: bool = False

    @property
    def has_api_keys(self) -> bool:
        return _has_keys(self.__dict__)

    @property
    def replays_alone(self) -> bool:
        """Whether nothing is computed, so that no model is loaded."""
        return self.replay is not None and self.replay_else == "refuse"

    @property
    def recorded_into(self) -> tuple[Path | None, str]:
        """The directory of what is recorded, if anything is, and the flag that names it."""
        return (self.replay, "replay") if self.replay_else == "record" else (self.record, "record")

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
    """Whether it is a scheme, a host in lower case, and no path nor the port that the scheme has anyway."""
    found = _ORIGIN.fullmatch(text)
    return found is not None and (found["scheme"], found["port"]) not in (("http", "80"), ("https", "443"))
