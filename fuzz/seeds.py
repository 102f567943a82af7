"""Seeds of the targets: small, and made on demand."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import msgspec

from corepipe.answers.parsing.formats import FORMATS
from corepipe.engine.channel import encode_frame
from corepipe.engine.messages import Abort, Output, Outputs, Shutdown, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.models import published
from corepipe.neuron.graph import Graph
from corepipe.neuron.host import packed_index
from corepipe.neuron.host.packed_index import ByteRange, Index, PackedEntry
from fuzz.targets import TINY, tiny_graph


def seeds(target: str) -> list[bytes]:
    """Returns at least one input that the target accepts."""
    made: list[bytes] = globals()[f"_{target}"]()
    return made


def _safetensors(tensors: dict[str, object], data: bytes = b"") -> bytes:
    header = json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + data


def _safetensors_file() -> list[bytes]:
    a = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    b = {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}
    c = {"dtype": "I8", "shape": [2], "data_offsets": [22, 24]}
    return [
        _safetensors({"__metadata__": {"format": "pt"}, "a": a, "b": b, "c": c}, bytes(24)),
        _safetensors({}),
        _safetensors({"a": {"dtype": "F16", "shape": [0, 4], "data_offsets": [0, 0]}}),
    ]


def _quantized() -> list[bytes]:
    """Makes files with fp8 in blocks, integers with zero points, and packed ones in another order."""
    fp8 = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    return [
        _with_config(fp8, {"weight": ("F8_E4M3", [3, 4], 12), "weight_scale_inv": ("F32", [2, 2], 16)}),
        _with_config(
            _compressed("channel", 8, symmetric=False),
            {
                "weight": ("I8", [3, 4], 12),
                "weight_scale": ("F32", [3, 1], 12),
                "weight_zero_point": ("I8", [3, 1], 3),
            },
        ),
        _with_config(
            _compressed("group", 4, group_size=4, actorder="group"),
            {
                "weight_packed": ("I32", [2, 1], 8),
                "weight_scale": ("BF16", [2, 2], 8),
                "weight_g_idx": ("I32", [8], 32),
                "weight_shape": ("I64", [2], (2).to_bytes(8, "little") + (8).to_bytes(8, "little")),
            },
        ),
    ]


def _compressed(strategy: str, bits: int, **more: object) -> dict[str, object]:
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, **more}
    return {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": weights}}}


def _with_config(config: dict[str, object], tensors: dict[str, tuple[str, list[int], int | bytes]]) -> bytes:
    """Makes a line of JSON and a file; tensors have a type, a shape, and a number of zeros or given bytes."""
    listed: dict[str, object] = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        begin = len(data)
        data += bytes(content) if isinstance(content, int) else content
        listed[f"m.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    return json.dumps(config).encode() + b"\n" + _safetensors(listed, data)


def _safetensors_index() -> list[bytes]:
    names = [{}, {"a": "a.safetensors"}, {"a": "../a.safetensors"}]
    return [json.dumps({"metadata": {"total_size": 1}, "weight_map": owners}).encode() for owners in names]


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _gguf_file() -> list[bytes]:
    """Makes a header with each type of value, a whole tiny model, and two tensors."""
    tensors = {"a": (0, 128), "b": (8, 34)}
    return [_gguf("llama", {"vocab_size": 2}, tensors), b"GGUF" + struct.pack("<IQQ", 2, 0, 0)]


def _gguf_checkpoint() -> list[bytes]:
    """Makes files of architectures with variants of their own."""
    gain = {"blk.0.attn_q_norm.weight": (0, 128), "blk.0.ffn_up.bias": (8, 34)}
    experts = {"expert_count": 4, "expert_used_count": 2, "vocab_size": 2}
    latents = {
        "attention.kv_lora_rank": 32,
        "attention.key_length_mla": 16,
        "attention.value_length_mla": 8,
        "rope.dimension_count": 8,
    }
    apart = {f"blk.0.attn_{name}_b.weight": (0, 128) for name in ("k", "v")}
    states = {"ssm.inner_size": 64, "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.state_size": 16}
    remade = {
        f"blk.0.{name}": (0, 128) for name in ("ssm_a", "ssm_d", "ssm_norm.weight", "ssm_conv1d.weight")
    }
    factors = {f"rope_factors_{name}.weight": (0, 128) for name in ("long", "short")}
    return [
        _gguf("gemma3", {"attention.sliding_window": 4, "attention.sliding_window_pattern": 6}, gain),
        _gguf("gemma2", {"attention.sliding_window": 4}, {"blk.0.attn_norm.weight": (0, 128)}),
        _gguf("olmo2", {"attention.sliding_window": 4}, gain),
        _gguf("phi3", {"rope.dimension_count": 8, "rope.scaling.original_context_length": 8}, factors),
        _gguf("gpt2", {}, {"blk.0.attn_qkv.weight": (0, 128), "token_embd.weight": (1, 64)}),
        _gguf("stablelm", {"use_parallel_residual": 0, "rope.dimension_count": 4}, gain),
        _gguf("gpt-oss", experts, {"blk.0.attn_sinks.weight": (0, 128), "blk.0.ffn_up_exps.bias": (0, 128)}),
        _gguf("dbrx", experts, {"blk.0.ffn_down_exps.weight": (39, 17)}),
        _gguf("deepseek2", {**experts, **latents, "expert_feed_forward_length": 32}, apart),
        _gguf("mamba2", {**states, "ssm.conv_kernel": 4}, remade),
    ]


def _gguf(arch: str, more: dict[str, int], tensors: dict[str, tuple[int, int]]) -> bytes:
    """Makes a file of one layer; `tensors` have a block type and a size, and 32 values each."""
    sizes = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        **more,
    }
    entries = [
        _text("general.architecture") + struct.pack("<I", 8) + _text(arch),
        *(_text(f"{arch}.{key}") + struct.pack("<II", 4, value) for key, value in sizes.items()),
        _text("tokenizer.ggml.model") + struct.pack("<I", 8) + _text("llama"),
        _text("tokenizer.chat_template") + struct.pack("<I", 8) + _text("{{ messages }}"),
        _text("general.alignment") + struct.pack("<II", 4, 32),
        *(_text(f"k{kind}") + struct.pack("<I", kind) + bytes(8) for kind in (10, 11, 12)),
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("b"),
        _text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.0, 1.0),
        _text("tokenizer.ggml.token_type") + struct.pack("<IIQII", 9, 4, 2, 1, 4),
    ]
    listed, data = b"", b""
    for name, (kind, size) in tensors.items():
        listed += _text(name) + struct.pack("<IQIQ", 1, 32, kind, len(data))
        data += bytes(-(-size // 32) * 32)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + listed
    return header + bytes(-len(header) % 32) + data


def index_of(graph: Graph) -> Index:
    """Returns the index of a graph as packing makes it."""
    tensors, at = {}, packed_index.ALIGNMENT
    for spec in graph.weights():
        kind, data, scale = packed_index.expected(spec, graph.format)[0]
        parts = []
        for size in (data, scale):
            parts.append(ByteRange(at, size))
            at += -(-size // packed_index.TENSOR_ALIGNMENT) * packed_index.TENSOR_ALIGNMENT
        tensors[spec.name] = PackedEntry(kind, spec.shape, parts[0], parts[1] if scale else None, 0)
    return Index(packed_index.ALIGNMENT * 2, packed_index.ALIGNMENT, tensors)


def _packed_file() -> list[bytes]:
    return [msgspec.json.encode(index_of(tiny_graph()))]


def _config() -> list[bytes]:
    tiny = [path.read_bytes() for path in sorted(TINY.glob("*/config.json"))]
    by_type = {
        str(published.config(name)["model_type"]): published.config(name) for name in published.names()
    }
    return tiny + [json.dumps(values).encode() for values in by_type.values()]


_fields = _config


def _tokenizer() -> list[bytes]:
    made = json.loads((TINY / "llama2" / "tokenizer.json").read_bytes())
    vocab = dict(list(made["model"]["vocab"].items())[:64])
    made["model"] |= {"vocab": vocab, "merges": []}
    return [json.dumps(made).encode()]


def _tokenizer_config() -> list[bytes]:
    listed = {
        "chat_template": [{"name": "default", "template": "x"}],
        "add_bos_token": True,
        "bos_token": "<s>",
    }
    return [(TINY / "llama2" / "tokenizer_config.json").read_bytes(), json.dumps(listed).encode()]


def _request() -> list[bytes]:
    plain = {"model": "m", "prompt": "Hello", "max_tokens": 5, "stop": ["a"], "logit_bias": {"1": 1.0}}
    chat = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}
    more = {"stream": True, "stream_options": {"include_usage": True}, "user": "u", "metadata": {"a": "b"}}
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}]}
    source = {"type": "content", "content": [{"type": "text", "text": "x"}]}
    turns = [
        {"role": "user", "content": [{"type": "document", "source": source}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, call]},
        {"role": "user", "content": [result]},
    ]
    tools = [{"name": "f", "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}]
    choice = {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    bodies = [
        plain,
        chat,
        {
            "model": "m",
            "max_tokens": 5,
            "system": "s",
            "messages": turns,
            "tools": tools,
            "tool_choice": choice,
        },
        plain | more,
        {"prompt": "a"},
        {"tokens": [1, 2]},
        {"model": "m", "prompt": [[1], [2]]},
    ]
    return [json.dumps(body).encode() for body in bodies]


def _stop_strings() -> list[bytes]:
    return [
        b"\x02\x01ababxxabyy",
        b"\x01\x02\xc3\xa9!caf\xc3\xa9!",
        b"\x00\x00plain",
        b"\x03\x02aabaab" + b"a" * 20,
    ]


def _tool_calls() -> list[bytes]:
    """Makes answers; the first bytes choose a format, reasoning, and the length of pieces."""
    one = b'{"name": "f", "arguments": {"a": 1}}'
    texts = {
        "hermes": b"Hm.\n<tool_call>\n" + one + b"\n</tool_call>\n<tool_call>" + one + b"</tool_call>",
        "llama3_json": b'{"name": "f", "parameters": {"a": "}"}}; {"name": "g", "parameters": {}}',
        "pythonic": b"[f(a=1), g(s='x', t=[1, {'k': None}])]",
        "mistral": b"[TOOL_CALLS] [" + one + b", " + one + b"]",
        "mistral_v11": b'[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
        "qwen3_coder": b"<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"
        b"<parameter=b>x</parameter>\n</function>\n</tool_call>",
        "smollm3_python": b"so <code>f(a=1)\ng()</code>",
    }
    names = sorted(FORMATS)
    made = [bytes((names.index(name), 0, 3)) + text for name, text in texts.items()]
    return [*made, bytes((names.index("hermes"), 1, 2)) + b"<think>a</think>\n<tool_call>" + one]


def _response_template() -> list[bytes]:
    """Returns the templates that transformers has for Qwen3 and for Qwen3.5."""
    call = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
    tags = {
        "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
        "close_pattern": r"</function>\s*</tool_call>",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
        "transform": call,
    }
    plain = {"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json"}
    thoughts = {"open": "<think>", "close": "</think>"}
    fields = [{"reasoning_content": thoughts, "tool_calls": one} for one in (tags, plain)]
    return [json.dumps({"fields": one, "start_anchor": "a"}).encode() for one in fields]


def _engine_frames() -> list[bytes]:
    submit = Submit("id", [1, 2, 3], 5, TokenSampling(temperature=0.5, seed=1, logit_bias={3: 1.0}), [2])
    messages = [submit, Abort(["id"]), Shutdown(), Outputs([Output("id", [1], finish_reason="stop")])]
    return [encode_frame(message) for message in messages] + [b"".join(map(encode_frame, messages[:3]))]


def _template() -> list[bytes]:
    written = [
        "{% for m in messages %}{{ m['role'] + ': ' + m.content | trim }}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% if not tools %}{{ messages | tojson }}{% endif %}{{ ns.x }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{% macro a(x) %}{{ '%s' % x }}{{ '{0}'.format(x) }}{% endmacro %}{{ a(messages | list) }}",
    ]
    return [text.encode() for text in written]


def write(target: str, folder: Path) -> None:
    """Writes the seeds into files, for libFuzzer."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(target)):
        (folder / f"seed-{number}").write_bytes(data)
