"""Refusals of `corepipe serve`: exit code 2, one line that says what to do, nothing on stdout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from corepipe.cli.flags.settings import settings_of
from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig
from tests.cli_page import named
from tests.servers import TINY, run

Refusal = subprocess.CompletedProcess[str]

LARGE = {
    "hidden_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 286720,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
"""Some 60 billion weights in a few layers."""

WITHOUT_KERNELS = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "corepipe.kernels._native":
            raise ImportError("no compiler was there")
sys.meta_path.insert(0, Blocker())
"""
"""A sitecustomize module, which reaches the engine's process too."""


DIES_AT_LOADING = """
import os, sys
if "corepipe.engine.process" in sys.orig_argv:
    os._exit(3)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint of one's own, to break."""
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def configure(model: Path, **changed: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changed))


def refused(*arguments: object, cache: Path) -> str:
    """The message of a refusal; its first line says what to do."""
    env = {**os.environ, "COREPIPE_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    ended = run("serve", "--port", 0, *arguments, env=env)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("corepipe: ")
    return ended.stderr


def refused_by_the_engine(model: Path, cache: Path, **settings: object) -> str:
    """Returns the refusal as above, without processes: what the engine's own would say."""
    config = EngineConfig.model_validate({"model": str(model), "cache_dir": cache, **settings})
    with pytest.raises(UserError) as caught:
        assemble(config, lambda _what, _done: None)
    return caught.value.message


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


def test_a_pickle(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    for path in (model, model / "pytorch_model.bin"):
        line = one_line(refused_by_the_engine(path, tmp_path))
        assert "pytorch_model.bin" in line
        assert "use safetensors or GGUF" in line


def test_an_unknown_architecture(model: Path, tmp_path: Path) -> None:
    configure(model, model_type="t5", d_model=64, d_ff=64, d_kv=16, num_layers=2, num_heads=4)
    line = one_line(refused_by_the_engine(model, tmp_path))
    assert "t5 is timed, not computed yet" in line
    assert "llama" in line


def test_a_missing_tensor(model: Path, tmp_path: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"layers.1.mlp.up_proj", b"layers.1.mlp.other__"))
    line = one_line(refused_by_the_engine(model, tmp_path))
    assert "model.layers.1.mlp.up_proj.weight is missing" in line


def test_a_config_that_contradicts_its_weights(model: Path, tmp_path: Path) -> None:
    configure(model, intermediate_size=128)
    line = one_line(refused(model, cache=tmp_path))
    assert f"{model / 'model.safetensors'}: tensor model.layers.0.mlp.gate_proj.weight has shape" in line


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_needed(
    model: Path, tmp_path: Path
) -> None:
    configure(model, **LARGE)
    (model / "model.safetensors").unlink()
    line, empty, head, *cores = refused(model, "--instance", "inf2.xlarge", cache=tmp_path).splitlines()
    assert "does not fit the memory of inf2.xlarge; use --instance " in line
    assert empty == ""
    assert head.split()[:2] == ["core", "weights"]
    assert cores
    assert all("GiB" in row for row in cores)


def test_the_instance_that_is_suggested_holds_it(model: Path, tmp_path: Path) -> None:
    configure(model, **LARGE)
    (model / "model.safetensors").unlink()
    line = refused_by_the_engine(model, tmp_path, instance="inf1.xlarge").splitlines()[0]
    flags = line.partition("; use ")[2].partition(", or")[0].split()
    assert "safetensors" in one_line(refused(model, *flags, cache=tmp_path)), "only the weights were missing"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tensor": 3}, "--instance"),
        ({"pipeline": 3, "instance": "inf1.xlarge"}, "--pipeline"),
        ({"max_model_len": 1000}, "256"),
        ({"num_blocks": 1}, "--num-blocks"),
        ({"instance": "inf3.xlarge"}, "inf2.xlarge"),
    ],
)
def test_a_deployment_that_cannot_be(settings: dict[str, object], named: str, tmp_path: Path) -> None:
    assert named in refused_by_the_engine(TINY, tmp_path, **settings).splitlines()[0]


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_a_model_without_a_tokenizer_is_refused(family: str, tmp_path: Path) -> None:
    model = shutil.copytree(TINY.parent / family, tmp_path / "model")
    (model / "tokenizer.json").unlink()
    assert "no tokenizer.json, nor tokenizer.model, nor vocab.json with merges.txt" in refused(
        model, cache=tmp_path
    )


def test_an_engine_that_dies_while_it_loads_is_one_line_and_1(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES_AT_LOADING)
    ended = run("serve", TINY, "--port", 0, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert one_line(ended.stderr) == "corepipe: the engine ended while it was loading"


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("a file where a directory should be")
    assert "COREPIPE_CACHE" in refused(TINY, cache=tmp_path).splitlines()[-1]


def without_kernels(site: Path, *arguments: object) -> Refusal:
    """The command where the native module was not built."""
    (site / "sitecustomize.py").write_text(WITHOUT_KERNELS)
    return run(*arguments, env={**os.environ, "PYTHONPATH": str(site)})


def test_without_native_kernels_serve_says_what_is_missing(tmp_path: Path) -> None:
    ended = without_kernels(tmp_path, "serve", TINY, "--port", 0)
    assert (ended.returncode, ended.stdout) == (2, "")
    line = one_line(ended.stderr)
    assert "native kernels are not built" in line
    assert "C++17 compiler" in line


def test_without_native_kernels_ls_works(tmp_path: Path) -> None:
    shown = without_kernels(tmp_path, "ls", "--instance", "trn1.2xlarge")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "trn1.2xlarge (emulated)" in shown.stdout


@pytest.mark.parametrize(("command", "others"), [("serve", set()), ("simulate", {"dtype"})])
def test_a_flag_that_is_left_out_is_its_setting_left_out(command, others) -> None:
    """Lists, of which a flag has None for none, and the model apart."""
    flags = [one for one in named()[command].params if one.name not in {"model", *others}]
    for config in (EngineConfig, ServerConfig):
        names = settings_of(config)
        settings = {one.name: config.model_fields[names[one.name]] for one in flags if one.name in names}
        assert len(settings) > 10 or command == "simulate"
        for flag in flags:
            default = settings[flag.name].get_default() if flag.name in settings else flag.default
            assert flag.default == default or (flag.default, default) == (None, ()), flag.name


def test_each_flag_of_the_configurations_is_one_of_the_command() -> None:
    """Each field but for those that have no flag, and `--also`, which makes configurations of its own."""
    made = {name for config in (EngineConfig, ServerConfig) for name in settings_of(config)}
    assert {one.name for one in named()["serve"].params} == made - {"lnc"} | {"also"}
    flagless = {"cache_dir", "first_core", "cores", "max_body_bytes"}
    assert {*EngineConfig.model_fields, *ServerConfig.model_fields} - flagless == {
        setting for config in (EngineConfig, ServerConfig) for setting in settings_of(config).values()
    }
