"""langchain-openai under langchain-tests' integration tests of chat models, by pytest."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.clients.rows import EXPLAINED, FAILED, KEY, MODEL, PASSED, URL, Result

LOOP = "asyncio_default_fixture_loop_scope=function"


class TestChatOpenAI(ChatModelIntegrationTests):
    """The whole suite; what it skips by what is declared here is told as explained."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"base_url": URL, "api_key": KEY, "model": MODEL, "max_tokens": 256, "temperature": 0}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return MODEL


class Told:
    """A plugin of pytest that tells each test's end as a row."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        title = report.nodeid.split("::")[-1]
        why = ""
        if report.skipped:
            why = getattr(report, "wasxfail", "") or str(report.longrepr[2]).removeprefix("Skipped: ")
            Result(title, EXPLAINED, why).tell()
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            Result(
                title, FAILED, " ".join(str(crash.message if crash else report.longrepr).split())[:600]
            ).tell()
        elif report.when == "call":
            Result(title, PASSED).tell()


if __name__ == "__main__":
    options = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "--asyncio-mode=auto", "-o", LOOP]
    alone = ["--noconftest", "-c", os.devnull, "--rootdir", str(Path(__file__).parent)]
    chosen = ["-k", os.environ.get("CLIENTS_ROWS", "")]
    ended = pytest.main([__file__, *options, *alone, *chosen], plugins=[Told()])
    sys.exit(0 if ended == pytest.ExitCode.TESTS_FAILED else ended)  # failed rows are told
