"""Checkpoints that answer by a script, so that agents get the calls they need from a real server.

A script gives a text for each number of tool results in the conversation, and one for requests without tools.
The chat template ends the prompt with a token for that text, and the weights continue each of its tokens with
the next: the answer is computed, sampled, parsed and rendered like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, HEADS, HEAD_SIZE, VOCABULARY = 256, 4, 16, 2048
POSITIONS = 131072
START, END = "<|im_start|>", "<|im_end|>"
TEXTS = Path(__file__).parents[2] / "docs"
"""The texts that the tokenizer's merges are learnt from."""

TEMPLATE = """\
{%- set results = messages | selectattr('role', 'equalto', 'tool') | list | length %}
{%- if tools %}<|im_start|>system
To call a tool, answer <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{# Reasoning stands between <think> and </think>. #}
{%- if not tools %}<|aside|>{% endif %}
{%- for turn in TURNS if tools and turn <= results %}
{%- if loop.last %}<|turn_{{ turn }}|>{% endif %}
{%- endfor %}
{%- endif %}"""


def call(name: str, **arguments: Any) -> str:
    """Returns a call of a tool as the model writes it (Hermes's format)."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Script:
    """The texts that a model says.

    turns: by the number of tool results that the conversation has, or the nearest below it; 0 is the first.
    aside: to requests without tools, such as those for a title.
    """

    turns: Mapping[int, str]
    aside: str = "A short note"

    def texts(self) -> dict[str, str]:
        """Returns the texts by the tokens that begin them."""
        return {**{f"<|turn_{at}|>": text for at, text in self.turns.items()}, "<|aside|>": self.aside}


WEATHER = Script(
    {
        0: f"<think>\nI have to ask.\n</think>\n\nLet me look. {call('get_weather', location='Paris')}",
        1: "It is 18 degrees in Paris, and sunny.",
    },
    aside="Paris is the capital of France.",
)
"""A call of the tool `get_weather`, after reasoning, and an answer to its result."""


@dataclass
class Chains:
    """The vocabulary, to which each text adds tokens of its own, and which token follows which."""

    vocabulary: dict[str, int]
    after: dict[int, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)

    def add(self, start: int, text: str) -> None:
        """Adds a text after the token `start`, in pieces that no other token has."""
        symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        last = start
        for piece in pieces("".join(symbol for symbol, _ in symbols), self.vocabulary):
            token = self.vocabulary[piece] = len(self.vocabulary)
            self.after[last], last = token, token
        self.ends.append(last)


def pieces(text: str, known: Mapping[str, int]) -> list[str]:
    """Cuts a text into pieces that are not known and differ from one another, each as short as can be.

    Raises ValueError for a text that is known as a whole.
    """
    cut: list[str] = []
    rest = ""
    for letter in text:
        rest += letter
        if rest not in known and rest not in cut:
            cut.append(rest)
            rest = ""
    while rest and (rest in known or rest in cut):
        if not cut:
            raise ValueError(f"a script cannot say {text!r}, which is a token of words")
        rest = cut.pop() + rest
    return [*cut, rest] if rest else cut


def write_scripted(folder: Path, script: Script) -> Path:
    """Writes a checkpoint of one Llama layer, whose blocks add nothing, and its tokenizer."""
    texts = script.texts()
    tokenizer = _learnt([START, END, *texts])
    learnt = json.loads(tokenizer.to_str())
    chains = Chains(learnt["model"]["vocab"])
    for opening, text in texts.items():
        chains.add(chains.vocabulary[opening], text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(learnt))
    end = chains.vocabulary[END]
    for name, content in (
        ("config.json", _config(len(chains.vocabulary), end)),
        ("tokenizer_config.json", {"eos_token": END, "chat_template": _template(script)}),
    ):
        (folder / name).write_text(json.dumps(content, indent=1))
    save_file(_weights(chains, end), folder / "model.safetensors")
    return folder


def _template(script: Script) -> str:
    return TEMPLATE.replace("TURNS", json.dumps(sorted(script.turns)))


def _learnt(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in sorted(TEXTS.glob("*.md"))], trainer)
    return tokenizer


def _config(vocabulary: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "bos_token_id": end,
    }


def _weights(chains: Chains, end: int) -> dict[str, npt.NDArray[np.float32]]:
    """Returns the weights: embeddings of random signs, and a head in which a token's row is the embedding of
    the token before it."""
    rng = np.random.default_rng(0)
    embedded = rng.choice(np.array([-1, 1], np.float32), (len(chains.vocabulary), HIDDEN))
    head = np.zeros_like(embedded)
    for before, after in chains.after.items():
        head[after] = embedded[before]
    head[end] = embedded[chains.ends].sum(axis=0)
    layer, heads = "model.layers.0", HEADS * HEAD_SIZE
    shapes = {
        f"{layer}.self_attn.q_proj": (heads, HIDDEN),
        f"{layer}.self_attn.k_proj": (HEAD_SIZE, HIDDEN),
        f"{layer}.self_attn.v_proj": (HEAD_SIZE, HIDDEN),
        f"{layer}.self_attn.o_proj": (HIDDEN, heads),
        **{f"{layer}.mlp.{name}_proj": (HIDDEN, HIDDEN) for name in ("gate", "up", "down")},
    }
    norms = ("model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    return {
        "model.embed_tokens.weight": embedded,
        "lm_head.weight": head,
        **{f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()},
        **{f"{name}.weight": np.ones(HIDDEN, np.float32) for name in norms},
    }
