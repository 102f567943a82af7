"""Models that somebody made to do harm, or that a disk has spoiled, given to a real `corepipe serve`."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.formats import FORMATS
from tests.models import ggufs
from tests.servers import TINY, Served, run, served


def rewrite_header(file: Path, change: Callable[[dict[str, dict[str, list[int]]]], object]) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def overlap(model: Path) -> None:
    def change(header: dict[str, dict[str, list[int]]]) -> None:
        header["model.norm.weight"]["data_offsets"] = [0, 4 * header["model.norm.weight"]["shape"][0]]

    rewrite_header(model / "model.safetensors", change)


def shorten(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def huge_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes((1 << 63).to_bytes(8, "little") + b"{}")


def not_finite(model: Path) -> None:
    file = model / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-4] + struct.pack("<f", float("nan")))


def escape(model: Path) -> None:
    (model / "chat_template.jinja").symlink_to("/etc/passwd")


def pipe(model: Path) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")


def own_code(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config"}
    (model / "config.json").write_text(json.dumps(config))
    (model / "evil.py").write_text("raise SystemExit('code of the model ran')")


def big_endian(model: Path) -> None:
    shutil.rmtree(model)
    model.mkdir()
    (model / "model.gguf").write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


def shortened_gguf(model: Path) -> None:
    shutil.rmtree(model)
    model.mkdir()
    ggufs.convert(TINY, model / "model.gguf")
    (model / "model.gguf").write_bytes((model / "model.gguf").read_bytes()[:-1])


def loops(model: Path) -> None:
    (model / "chat_template.jinja").write_text(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )


def reaches_out(model: Path) -> None:
    """Renders the template, as a server does before it serves."""
    (model / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")


def nested(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"version": "1.0", "added_tokens": [], "model": ' + "[" * 100_000)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (overlap, "model.safetensors: tensor "),
        (not_finite, "model.safetensors: tensor "),
        (escape, "chat_template.jinja: is a link out of the model's directory"),
        (reaches_out, "the chat template is refused: "),
        pytest.param(loops, "the chat template takes more than 2 s", marks=pytest.mark.slow),
    ],
)
def test_one_line_names_the_file_and_nothing_is_served(
    model: Path, harm: Callable[[Path], None], named: str
) -> None:
    harm(model)
    env = {**os.environ, "COREPIPE_CACHE": str(model.parent / "cache"), "HF_HUB_OFFLINE": "1"}
    ended = run("serve", model, "--port", 0, env=env)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("corepipe: ")
    assert named in line
    assert "Traceback" not in ended.stderr
    assert "ready in" not in ended.stderr


def load(model: Path) -> None:
    """Reads what a server reads of a model before it packs weights."""
    loaded = registry.load(model)
    loaded.tokenizer()
    loaded.check(loaded.graph(FORMATS["int8"]))


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (shorten, "model.safetensors: truncated"),
        (huge_header, "model.safetensors: not a safetensors file"),
        (pipe, "config.json"),
        (own_code, "config.json: auto_map asks for code"),
        (big_endian, "model.gguf: not a readable GGUF file: big-endian version 3"),
        (shortened_gguf, "model.gguf: "),
        (nested, "tokenizer.json: cannot be read"),
    ],
)
def test_a_model_is_refused_with_one_printable_line(
    model: Path, harm: Callable[[Path], None], named: str
) -> None:
    harm(model)
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        load(model)
    assert caught.value.message.isprintable()


def complete(server: Served) -> tuple[int, str]:
    body = {"model": str(TINY), "prompt": "Hello there", "max_tokens": 8, "temperature": 0}
    answer = server.post("/v1/completions", json=body)
    return answer.status_code, answer.json()["choices"][0]["text"] if answer.is_success else ""


def test_weights_that_shrink_while_they_are_served_end_no_more_than_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREPIPE_CACHE", str(tmp_path))
    with served(TINY) as server:
        golden = complete(server)
        assert golden[0] == 200
        (packed,) = (tmp_path / "packed").iterdir()
        os.truncate(packed, 4096)
        assert complete(server) in (golden, (503, "")), "from another engine, or not at all"
        assert server.get("/version").status_code == 200
    with served(TINY) as server:
        assert complete(server) == golden, "the damaged file was made anew"
