"""docs/testing-llm-apps.md: its workflow, compose file, settings and commands are what they say they are."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import corepipe.pytest
from corepipe.serving.api.cassettes.file_format import read
from corepipe.serving.api.cassettes.redaction import read_redaction
from corepipe.serving.api.table import ROUTES
from tests.cli.test_main import named
from tests.servers import TINY
from tests.test_pytest_plugin import pytest_in

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "testing-llm-apps.md").read_text()
SERVE = {
    flag for parameter in named()["serve"].params for flag in (*parameter.opts, *parameter.secondary_opts)
}
PLUGIN = (ROOT / "corepipe" / "pytest.py").read_text()
OPTIONS = set(re.findall(r'addoption\("(--[a-z-]+)"', PLUGIN))
SETTINGS = set(re.findall(r'addini\("([a-z_]+)"', PLUGIN))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


PYTEST = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("pytest")]


def of_yaml(key: str) -> dict[str, Any]:
    (found,) = [document for document in map(yaml.safe_load, blocks("yaml")) if key in document]
    return found


def check_command(line: str) -> None:
    """A command of a shell: its program is ours or well known, and its flags are what that takes."""
    words = shlex.split(line, comments=True)
    flags = {word for word in words if word.startswith("--")}
    if words[0] == "corepipe":
        assert words[1] in named()
        assert flags <= SERVE
    elif words[0] == "pytest":
        assert flags <= OPTIONS
    else:
        assert words[:2] == ["pip", "install"]


def test_the_commands_exist() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) > 5
    for line in lines:
        check_command(line)


def test_the_workflow() -> None:
    workflow = of_yaml("jobs")
    assert True in workflow, "`on`, as YAML reads it"
    assert len(workflow["jobs"]) == 2
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        for step in job["steps"]:
            assert set(step) <= {"uses", "with", "run", "name"}
            if "run" in step:
                check_command(step["run"])
            else:
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


def test_the_compose_file() -> None:
    services = of_yaml("services")["services"]
    command = services["llm"]["command"]
    check_command(shlex.join(["corepipe", *command]))
    folder = command[command.index("--replay") + 1]
    assert services["llm"]["volumes"] == [f"./tests/cassettes:{folder}:ro"]
    assert services["llm"]["healthcheck"]["test"] == ["CMD", "python3", "-m", "corepipe.probe"]
    assert services["tests"]["depends_on"] == {"llm": {"condition": "service_healthy"}}
    assert services["tests"]["environment"]["OPENAI_BASE_URL"] == "http://llm:8000/v1"


@pytest.mark.parametrize("replayed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_example_records_and_replays(tmp_path: Path, replayed: bool) -> None:
    """The page's test under the page's settings, rules and commands; the model is a tiny one.

    That what a project records is replayed is shown in `test_pytest_plugin.py`, too.
    """
    (example,), (settings, rules), (record, replay) = blocks("python"), blocks("toml"), PYTEST
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_assistant.py").write_text(example)
    (tmp_path / "tests" / "redact.toml").write_text(rules)
    (tmp_path / "pyproject.toml").write_text(f'{settings}corepipe_model = "{TINY}"\n')
    for command in (record, replay) if replayed else (record,):
        done = pytest_in(tmp_path, *shlex.split(command, comments=True)[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout
    (cassette,) = [file for file in (tmp_path / "tests" / "cassettes").iterdir() if "chat" in file.name]
    asked = yaml.safe_load(cassette.read_text())["request"]["body"]
    assert asked["messages"] == [{"role": "user", "content": "Say hello."}]


def test_the_settings_and_the_rules(tmp_path: Path) -> None:
    settings, rules = blocks("toml")
    assert set(tomllib.loads(settings)["tool"]["pytest"]["ini_options"]) <= SETTINGS
    file = tmp_path / "redact.toml"
    file.write_text(rules)
    read_redaction(file)


def test_the_tables_have_every_option_setting_and_fixture() -> None:
    cells = [cell for row in re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE) for cell in row.split("|")]
    quoted = {name for cell in cells for name in re.findall(r"^ `([\w-]+)(?: [A-Z]+)?` $", cell)}
    fixtures = {"corepipe_url", "corepipe_model", "openai_client"}
    assert quoted == OPTIONS | SETTINGS | fixtures
    assert all(callable(getattr(corepipe.pytest, name)) for name in fixtures)


def test_what_is_said_to_be_recorded_is() -> None:
    (said,) = re.findall(
        r"\*\*What is recorded\*\*: requests to (.*?) and\nthe lists of models", PAGE, re.DOTALL
    )
    assert set(re.findall(r"`(/[\w/{}]+)`", said)) == {
        route.path for route in ROUTES if route.recorded and route.method == "POST"
    }


def test_the_example_of_a_file_is_one() -> None:
    (answer,) = re.findall(r'^(    "answer": \{.*?^    \})', PAGE, re.DOTALL | re.MULTILINE)
    request = '{"method": "POST", "path": "/v1/chat/completions", "body": {}}'
    whole = read(f'{{"cassette": 1, "request": {request},\n{answer}}}'.encode(), 1 << 20).exchange()
    assert len(whole.answer.pieces) == 3
    assert whole.answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("code", blocks("python"))
def test_the_example_of_a_test_compiles(code: str) -> None:
    compile(code, "example", "exec")
