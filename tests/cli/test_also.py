"""`--also`: what it says of a model, and what is wrong with it in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from corepipe.cli.flags.also import COMMON, OWN, also_configs
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig

ENGINE = EngineConfig(
    model="m", instance="trn1.32xlarge", clock="device", time_scale=3.0, seed=7, format="bf16", threads=5
)
SERVER = ServerConfig(served_model_names=("first", "alias"), chat_template="{{ messages }}", api_keys=("k",))


def test_a_model_has_its_own_options_and_the_servers_device() -> None:
    ((engine, server),) = also_configs(
        ["b=/m/b,dtype=fp32,max-num-seqs=4,enable-prefix-caching=false"], ENGINE, SERVER
    )
    assert (engine.model, engine.format, engine.max_num_seqs, engine.prefix_cache) == (
        "/m/b",
        "fp32",
        4,
        False,
    )
    assert (engine.instance, engine.clock, engine.time_scale, engine.seed) == (
        "trn1.32xlarge",
        "device",
        3.0,
        7,
    )
    assert engine.threads is None
    assert (server.served_model_names, server.chat_template, server.api_keys) == (("b",), None, ("k",))


def test_a_chat_template_and_parsers_are_of_one_model(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ tools }}")
    text = f"b=/m/b,chat-template={tmp_path / 't.jinja'},tool-call-parser=hermes"
    ((_, server),) = also_configs([text], ENGINE, SERVER)
    assert (server.chat_template, server.tool_call_parser) == ("{{ tools }}", "hermes")


def test_each_option_is_a_setting_and_none_is_the_servers() -> None:
    names = {*OWN.values()}
    assert names <= {*EngineConfig.model_fields, *ServerConfig.model_fields}
    assert not names & {*COMMON}
    json = {"speculative_config", "kv_events_config", "lora_modules"}  # which has commas
    others = {"model", "first_core", "cores", "kernels", *json}  # kernels are Python that the server runs
    assert {*EngineConfig.model_fields} == {*others, *COMMON, *names} - {
        "chat_template", "tool_call_parser", "reasoning_parser",
    }  # fmt: skip


BAD = {
    "b": "NAME=PATH",
    "=/m": "NAME=PATH",
    "b=": "NAME=PATH",
    "b=,dtype=fp32": "NAME=PATH",
    "alias=/m": "there is a model of the name alias already",
    "b=/m,port=80": "b: 'port' is no option of a model; there are dtype, bits",
    "b=/m,": "b: '' is no option",
    "b=/m,dtype": "b: dtype: give each option once, as dtype=VALUE",
    "b=/m,dtype=": "give each option once",
    "b=/m,dtype=fp32,dtype=bf16": "give each option once",
    "b=/m,dtype=fp5": "b: dtype: Input should be",
    "b=/m,max-num-seqs=0": "b: max-num-seqs: Input should be greater",
    "b=/m,chat-template=/nowhere": "b: chat-template /nowhere: ",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_is_named(text: str) -> None:
    with pytest.raises(UserError) as caught:
        also_configs([text], ENGINE, SERVER)
    assert caught.value.message.startswith("--also ")
    assert BAD[text] in caught.value.message


def test_two_of_a_name_are_refused() -> None:
    with pytest.raises(UserError, match="--also b=/n: there is a model of the name b already"):
        also_configs(["b=/m", "b=/n"], ENGINE, SERVER)
