"""The targets: each takes bytes, and raises if our code does anything but accept or refuse them."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from math import prod
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import safetensors

from corepipe.engine.batch import requests
from corepipe.engine.channel import FrameDecoder, FrameError
from corepipe.engine.messages import Command, Event, Start, Submit
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from corepipe.models.checkpoints.gguf_config import config_fields, gguf_family
from corepipe.models.checkpoints.quantization import read_quantization
from corepipe.models.checkpoints.quantized import QuantizedCheckpoint
from corepipe.models.checkpoints.safetensors import INDEX, SafetensorsCheckpoint
from corepipe.models.fields import Fields
from corepipe.models.text import chat_sandbox
from corepipe.models.text.directory_tokenizer import from_directory
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host import packed_index
from corepipe.serving.api.bodies.messages import plain_messages
from corepipe.serving.api.bodies.reading import parse
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.messages.body import MessagesRequest
from corepipe.serving.api.messages.translation import translated
from corepipe.serving.api.routes.chat import ChatRequest
from corepipe.serving.api.routes.completions import CompletionRequest
from corepipe.serving.api.routes.tokens import DetokenizeRequest, TokenizeRequest
from fuzz.answers import response_template, stop_strings, tool_calls
from fuzz.checks import check

TINY = Path(__file__).parent.parent / "tests" / "data" / "tiny"
MEMORY = Path("/dev/shm")  # noqa: S108 -- files that live for a millisecond need no disk
VOCAB, MAX_LEN = 512, 128


@contextmanager
def refusals() -> Iterator[None]:
    """Accepts a UserError as an answer if its message is one line that harms no terminal."""
    try:
        yield
    except UserError as error:
        check(error.message.isprintable(), f"a message that is no printable line: {error.message!r}")


@cache
def folder() -> Path:
    """Returns a directory that belongs to this process alone."""
    return Path(tempfile.mkdtemp(prefix="corepipe-fuzz-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))


def written(name: str, data: bytes) -> Path:
    file = folder() / name
    file.write_bytes(data)
    return file


def safetensors_file(data: bytes) -> None:
    """Checks that the format's own library accepts what we accept, and that tensors fit their header."""
    file = written("model.safetensors", data)
    with refusals():
        checkpoint = SafetensorsCheckpoint(file)
        theirs = dict(safetensors.deserialize(data))
        check(theirs.keys() == set(checkpoint.names()), "other tensors than the library's")
        for name in checkpoint.names():
            check(tuple(theirs[name]["shape"]) == checkpoint.shape(name), f"another shape of {name}")
            with refusals():
                values = checkpoint.read(name)
                check(values.shape == checkpoint.shape(name), f"{name} has another shape than told")
                check(bool(np.isfinite(values).all()), f"{name} is not finite")


def quantized(data: bytes) -> None:
    """Reads a quantization_config in one line, and a file of tensors."""
    config, _, tensors = data.partition(b"\n")
    with suppress(ValueError, RecursionError), refusals():
        said = Fields(Path("config.json"), {"quantization_config": json.loads(config)})
        quantization = read_quantization(said)
        if quantization is None:
            return
        checkpoint = QuantizedCheckpoint(
            SafetensorsCheckpoint(written("model.safetensors", tensors)), quantization
        )
        for name in checkpoint.names():
            with refusals():
                shape = checkpoint.shape(name)
                check(prod(shape) <= 8 * len(tensors), "more values than the file can hold")
                values = checkpoint.read(name)
                check(values.shape == shape, f"{name} has another shape than told")
                check(bool(np.isfinite(values).all()), f"{name} is not finite")


def safetensors_index(data: bytes) -> None:
    """Checks that an index leads only to files beside it."""
    home = folder() / "sharded"
    home.mkdir(exist_ok=True)
    (home / "a.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (home / INDEX).write_bytes(data)
    with refusals():
        checkpoint = SafetensorsCheckpoint(home)
        check(all(checkpoint.file(name).parent == home for name in checkpoint.names()), "a file elsewhere")


def gguf_file(data: bytes) -> None:
    """Reads the header, configuration and tensors of a GGUF file."""
    file = written("model.gguf", data)
    with refusals():
        gguf = GgufFile(file)
        check(all(t.offset + t.nbytes <= len(data) for t in gguf.tensors.values()), "a tensor past the end")
        for name in gguf.tensors:
            with refusals():
                values = gguf.read(name)
                check(values.shape == gguf.tensors[name].shape, f"{name} has another shape than told")
                check(bool(np.isfinite(values).all()), f"{name} is not finite")
        model = registry.load(file)
        model.tokenizer().encode("Hello, world")


def gguf_checkpoint(data: bytes) -> None:
    """Reads a GGUF file of any architecture as a configuration and weights."""
    file = written("model.gguf", data)
    with refusals():
        gguf = GgufFile(file)
        registry.Architecture("x", config_fields(gguf))
        checkpoint = GgufCheckpoint(gguf, gguf_family(gguf), {})
        for name in checkpoint.names():
            with refusals():
                check(checkpoint.read(name).shape == checkpoint.shape(name), f"another shape of {name}")


def packed_file(data: bytes) -> None:
    """Checks that kernels read nothing outside the file, whatever a well-formed index contains."""
    size = len(packed_index.MAGIC) + 12 + len(data)
    head = packed_index.MAGIC + len(data).to_bytes(8, "little")
    head += zlib.crc32(data).to_bytes(4, "little") + data
    nbytes = max(size, packed_index.ALIGNMENT * 2)
    with suppress(ValueError):
        index = packed_index.decode(head, nbytes, tiny_graph())
        for spec in tiny_graph().weights():
            entry = index.tensors[spec.name]
            check(entry.shape == spec.shape, "another shape")
            for part in packed_index.parts(entry):
                check(0 < part.offset <= part.end <= nbytes, "outside the file")


@cache
def tiny_graph() -> Graph:
    return registry.load(TINY / "llama2").graph(FORMATS["int8"])


def config(data: bytes) -> None:
    """Reads a config.json of every family; an accepted one must make a Graph."""
    file = written("config.json", data)
    with refusals():
        architecture = registry.architecture(str(file))
        if architecture.config.num_layers <= 8:
            architecture.graph(FORMATS["bf16"])


def tokenizer(data: bytes) -> None:
    """Reads a tokenizer.json, which the library may refuse or panic at; then encodes or refuses a text."""
    home = folder() / "tokenizer"
    home.mkdir(exist_ok=True)
    (home / "tokenizer.json").write_bytes(data)
    with refusals():
        made = from_directory(home)
        ids = made.encode("Hello, world \U0001f600 12345")
        made.decode(ids)


def tokenizer_config(data: bytes) -> None:
    """Reads a tokenizer_config.json beside a valid tokenizer.json."""
    home = folder() / "tokenizer_config"
    home.mkdir(exist_ok=True)
    if not (home / "tokenizer.json").exists():
        (home / "tokenizer.json").write_bytes((TINY / "llama2" / "tokenizer.json").read_bytes())
    (home / "tokenizer_config.json").write_bytes(data)
    with refusals():
        from_directory(home).encode("Hello, world")


def request(data: bytes) -> None:
    """Checks that bodies of the API are accepted, or refused with a 4xx."""
    for kind in (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest, MessagesRequest):
        try:
            parsed = parse(data, kind)
            if isinstance(parsed, CompletionRequest | ChatRequest):
                parsed.check(VOCAB, 32)
            if isinstance(parsed, MessagesRequest):
                parsed = translated(parsed, drops_hosted=len(data) % 2 == 0).chat
            if isinstance(parsed, ChatRequest):
                for message in plain_messages(parsed.messages):
                    check(_is_text(message["content"]), "a content that is no text")
        except ApiError as error:
            check(400 <= error.status < 500, f"status {error.status} for a client's mistake")


def _is_text(content: object) -> bool:
    """Tells whether a content is a text, or a list of text parts as templates take them."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return all(part == {"type": "text", "text": str(part["text"])} for part in parts)


def engine_frames(data: bytes) -> None:
    """Checks that the stream between server and engine gives frames or a FrameError, in whatever pieces."""
    for kind in (Command, Event, Start):
        whole, parts = FrameDecoder[object](kind), FrameDecoder[object](kind)
        try:
            messages = whole.feed(data)
        except FrameError:
            continue
        cut = [message for at in range(len(data)) for message in parts.feed(data[at : at + 1])]
        # Compared as bytes, since NaN does not equal itself.
        check(msgspec.msgpack.encode(cut) == msgspec.msgpack.encode(messages), "other messages when cut")
        for message in messages:
            if isinstance(message, Submit):
                _submit(message)


def _submit(submit: Submit) -> None:
    with suppress(ValueError):
        taken = requests.to_request(submit, 0.0, 0, VOCAB, MAX_LEN)
        check(0 < len(taken.prompt) < MAX_LEN, "a prompt of no length that fits")
        check(all(0 <= token < VOCAB for token in taken.prompt), "a token that there is not")
        check(1 <= taken.max_tokens <= MAX_LEN - len(taken.prompt), "more tokens than fit")


OUTSIDE = ("open", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")
"""Audit events of actions that a template must not cause."""


class _Watch:
    """Watches templates for forbidden actions; as audit hooks stay for ever, it is switched on and off."""

    def __init__(self) -> None:
        self.looking = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        late_import = bool(arguments) and str(arguments[0]).endswith((".py", ".pyc"))
        if self.looking and event.startswith(OUTSIDE) and not late_import:
            self.seen.append(f"{event}{arguments}")


@cache
def watch() -> _Watch:
    return _Watch()


def template(data: bytes) -> None:
    """Checks that any template over a short conversation opens nothing; the process limits its time."""
    text = data.decode("utf-8", errors="replace")
    if "range" in text or len(text) > 1024:
        return
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    gc.disable()  # processes of earlier targets end when their objects are collected
    watch().looking = True
    try:
        chat_sandbox.CompiledTemplate(text).render(messages, {"tools": None, "add_generation_prompt": True})
    except Exception:  # noqa: S110 -- whatever its expressions raise, the process answers with it
        pass
    finally:
        watch().looking = False
        gc.enable()
    seen, watch().seen = watch().seen, []
    check(not seen, f"the template reached {seen[:3]}")


def fields(data: bytes) -> None:
    """Checks that typed access to any JSON object gives a value of the type, or a UserError with the key."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        given = Fields(Path("config.json"), values)
        for key in list(values)[:20]:
            for read in (given.text, given.flag, given.ids, given.section):
                with refusals():
                    read(key)
            with refusals():
                check(1 <= given.integer(key, 10) <= 10, "an integer outside its bounds")
            with refusals():
                check(0.0 <= given.number(key, 0.0, 1.0) <= 1.0, "a number outside its bounds")


TARGETS: Mapping[str, Callable[[bytes], None]] = MappingProxyType(
    {
        target.__name__: target
        for target in (
            safetensors_file,
            safetensors_index,
            quantized,
            gguf_file,
            gguf_checkpoint,
            packed_file,
            config,
            fields,
            tokenizer,
            tokenizer_config,
            request,
            stop_strings,
            tool_calls,
            response_template,
            engine_frames,
            template,
        )
    }
)
