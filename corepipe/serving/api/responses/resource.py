"""The response object: the request's settings, the items of the output, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from corepipe.serving.api.answering.rendering import Envelope, TokenUsage
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.responses.body import ResponsesRequest, TextFormat

Json = dict[str, Any]
_KNOWN_CODES = frozenset({"rate_limit_exceeded", "context_length_exceeded"})
"""Codes of errors that clients of this API know; Codex reads them."""


class ResponseObject:
    """The object of one response, as it is at each of its events.

    kept: it can be retrieved later.  dropped: types of hosted tools that were left out.
    """

    def __init__(
        self, body: ResponsesRequest, envelope: Envelope, *, kept: bool, dropped: Sequence[str] = ()
    ) -> None:
        self.id = envelope.id
        self._envelope = envelope
        self._settings = _settings(body, kept=kept, dropped=dropped)

    def fields(
        self, status: str, output: Sequence[Json], usage: Json | None = None, **others: object
    ) -> Json:
        """Returns the object with this status; `others`: fields that this status has."""
        finished = {"completed_at": None, "error": None, "incomplete_details": None} | others
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._envelope.created,
            "status": status,
            **finished,
            "model": self._envelope.model,
            "output": list(output),
            **self._settings,
            "usage": usage,
        }

    def ended(self, reason: str, output: Sequence[Json], usage: Json | None) -> Json:
        """Returns the object of an answer that ended with a `finish_reason`."""
        if reason == "length":
            details = {"reason": "max_output_tokens"}
            return self.fields("incomplete", output, usage, incomplete_details=details)
        return self.fields("completed", output, usage, completed_at=int(time.time()))

    def failed(self, error: ApiError, output: Sequence[Json]) -> Json:
        return self.fields("failed", output, error={"code": failure_code(error), "message": error.message})


def failure_code(error: ApiError) -> str:
    """Returns the code of an error in a response: one that clients know."""
    if error.code in _KNOWN_CODES:
        return error.code or ""
    return "server_error" if error.status >= 500 else "invalid_prompt"


def _settings(body: ResponsesRequest, *, kept: bool, dropped: Sequence[str]) -> Json:
    reasoning, text = body.reasoning, body.text
    return {
        "background": body.background,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": kept,
        "temperature": body.temperature,
        "text": {
            "format": _format(text.format if text and text.format else TextFormat("text")),
            "verbosity": (text and text.verbosity) or "medium",
        },
        "tool_choice": body.tool_choice or "auto",
        "tools": [_tool(one) for one in body.tools or () if one.get("type") not in dropped],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "truncation": body.truncation,
        "user": body.user,
        **({"dropped_tools": list(dropped)} if dropped else {}),
    }


def _format(wanted: TextFormat) -> Json:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    return asdict(wanted) | {"strict": bool(wanted.strict)}


def _tool(tool: Mapping[str, Any]) -> Json:
    """Returns a tool with the fields that clients expect in the answer."""
    expected = ("description", "parameters", "strict") if tool["type"] == "function" else ()
    return {**dict.fromkeys(expected), **tool}


def usage_fields(usage: TokenUsage, reasoned: int) -> Json:
    """Returns the usage of a response, of whose tokens so many are reasoning."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": reasoned},
        "total_tokens": usage.prompt + usage.completion,
    }
