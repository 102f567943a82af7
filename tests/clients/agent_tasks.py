"""The coding agents that are tried: how each is started, and the calls by which its model does the task.

In the texts `<url>` stands for the server's address, `<home>` and `<work>` for the agent's directories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.scripted import Script, call

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "build" / "agents"
NODE_BIN = PROGRAMS / "node_modules" / ".bin"
MODEL, CONTEXT, KEY = "scripted", 100_000, "none"
TASK = "Read notes.txt and write its words in capitals into loud.txt"
NOTES, LOUD = "the quick brown fox\n", "THE QUICK BROWN FOX\n"
DONE = "loud.txt has the words of notes.txt."
NOBODY = "01a21f25-1a1e-7e01-914d-823ea445eeb7"
"""The id of an agent that there is not."""


@dataclass(frozen=True)
class Agent:
    """An agent.

    route: the one that it must use.  files: settings that it reads, by their paths.  flags: of the server.
    shown: texts that come back to the server in a request.
    """

    name: str
    package: str
    route: str
    program: Path
    arguments: tuple[str, ...]
    script: Script
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    shown: tuple[str, ...] = (NOTES.strip(),)


def _calls(read: str, write: str, path: str) -> Script:
    """Returns calls of two tools that read and write a file, and name it by the same argument."""
    reading = call(read, **{path: "<work>/notes.txt"})
    writing = call(write, **{path: "<work>/loud.txt", "content": LOUD})
    return Script({0: f"I read the file.\n{reading}", 1: writing, 2: DONE})


def _read(name: str) -> str:
    return call("Read", file_path=f"<work>/{name}")


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def _codex() -> Agent:
    settings = f"""\
model = "{MODEL}"
model_provider = "corepipe"
model_context_window = {CONTEXT}
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.corepipe]
name = "corepipe"
base_url = "<url>/v1"
env_key = "CODEX_KEY"
wire_api = "responses"
"""
    write = f"printf '{LOUD.strip()}\\n' > loud.txt"
    turns = {
        0: call("exec_command", cmd="cat notes.txt") + call("exec_command", cmd="ls"),
        2: call("multi_agent_v1__close_agent", target=NOBODY),  # a tool of a namespace
        3: call("exec_command", cmd=write),
        4: DONE,
    }
    return Agent(
        "codex",
        "@openai/codex",
        RESPONSES,
        NODE_BIN / "codex",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        Script(turns),
        {"CODEX_HOME": "<home>/codex", "CODEX_KEY": KEY},
        {"<home>/codex/config.toml": settings},
        ("--drop-hosted-tools",),  # for its search of the web
        (NOTES.strip(), f"agent with id {NOBODY} not found"),
    )


ASKS_NOBODY = "--print --dangerously-skip-permissions"


def _claude_code() -> Agent:
    turns = {
        0: f"<think>\nTwo files.\n</think>\n\nI read both. {_read('notes.txt')}{_read('nothing.txt')}",
        2: call("Write", file_path="<work>/loud.txt", content=LOUD),
        3: DONE,
    }
    return Agent(
        "claude-code",
        "@anthropic-ai/claude-code",
        MESSAGES,
        NODE_BIN / "claude",
        (*f"--model {MODEL} --verbose --output-format stream-json {ASKS_NOBODY}".split(), TASK),
        Script(turns),
        {
            "ANTHROPIC_BASE_URL": "<url>",
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",  # else it refuses to run as root without asking
        },
        shown=(NOTES.strip(), "File does not exist"),
    )


def _opencode(package: str, route: str) -> Agent:
    models = {MODEL: {"name": MODEL, "limit": {"context": CONTEXT, "output": 4096}, "tool_call": True}}
    provider = {
        "npm": f"@ai-sdk/{package}",
        "name": "corepipe",
        "options": {"baseURL": "<url>/v1", "apiKey": KEY},
        "models": models,
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "provider": {"corepipe": provider},
        "model": f"corepipe/{MODEL}",
        "small_model": f"corepipe/{MODEL}",
    }
    return Agent(
        f"opencode-{route.rsplit('/')[2]}",
        "opencode-ai",
        route,
        NODE_BIN / "opencode",
        ("run", "--auto", TASK),
        _calls("read", "write", "filePath"),
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
        {"<home>/.config/opencode/opencode.json": json.dumps(settings)},
    )


def _qwen_code(kind: str, route: str) -> Agent:
    settings = {
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    address = "<url>" if kind == "anthropic" else "<url>/v1"
    name = "ANTHROPIC" if kind == "anthropic" else "OPENAI"
    return Agent(
        f"qwen-code-{route.rsplit('/')[2]}",
        "@qwen-code/qwen-code",
        route,
        NODE_BIN / "qwen",
        ("--yolo", "--auth-type", kind, "--model", MODEL, TASK),
        _calls("read_file", "write_file", "file_path"),
        {f"{name}_BASE_URL": address, f"{name}_API_KEY": KEY, f"{name}_MODEL": MODEL},
        {"<home>/.qwen/settings.json": json.dumps(settings)},
    )


def _aider() -> Agent:
    switches = ("git", "analytics", "check-update", "show-release-notes", "show-model-warnings", "pretty")
    return Agent(
        "aider",
        "aider-chat",
        CHAT,
        PROGRAMS / "aider" / "bin" / "aider",
        (
            *f"--model openai/{MODEL} --openai-api-base <url>/v1 --openai-api-key {KEY}".split(),
            *(f"--no-{name}" for name in switches),
            *("--edit-format", "whole", "--yes-always", "--read", "notes.txt", "--message", TASK, "loud.txt"),
        ),
        Script({}, aside=f"{DONE}\n\nloud.txt\n```\n{LOUD}```\n"),
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )


AGENTS = (
    _codex(),
    _claude_code(),
    _opencode("openai-compatible", CHAT),
    _opencode("openai", RESPONSES),
    _opencode("anthropic", MESSAGES),
    _qwen_code("openai", CHAT),
    _qwen_code("openai-responses", RESPONSES),
    _qwen_code("anthropic", MESSAGES),
    _aider(),
)
