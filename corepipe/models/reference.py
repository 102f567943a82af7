"""Writes docs/models.md from the families and the published shapes, and the counts in other documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from corepipe.models import hub, published, registry
from corepipe.models.checkpoints.gguf_blocks import BLOCK_TYPES
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES
from corepipe.models.checkpoints.quantization import FORMATS
from corepipe.models.checkpoints.safetensors import DTYPES
from corepipe.models.families import FAMILIES
from corepipe.models.packaged import PACKAGED
from corepipe.models.registry import computed_families
from corepipe.models.sentence_transformers import ACTIVATIONS, MODES, SCORES

_INTRO = """\
# Models

<!-- Written by `python -m corepipe.models.reference`; a test compares. -->

Every command that takes a model accepts a directory in the Hugging Face layout, a `config.json`, a
`.gguf` file, or one of the names below. `corepipe serve` computes tokens and needs weights. `simulate`,
`plan`, `predict` and `profile` need only the shape: a name is enough for them, and nothing is downloaded.

A name may be written as on the model hub: case, the organisation before the slash, hyphens and endings
such as `-Instruct`, `-hf`, `-uncased` or `-v0.1` are ignored, unless two shapes differ in them
(`bert-base` and `bert-base-cased` have different vocabularies).

## Families

The families are listed by the `model_type` of a config.json.
**Computed** families are served, {computed} model types; {timed} others
are timed only: they can be simulated, planned and predicted, but are not computed yet.

"""

_NAMES = """
## Names

{names} public models by name, of {shapes} shapes.

"""

COUNTED = ("README.md", "docs/deploy.md", "corepipe/cli/serve.py")
"""Files beside docs/models.md that state how many models there are, from the root of the repository."""

_LIMITS = """
The Graphs of these families leave out the following, or have it in a simpler form:

- The rotary frequencies of timed families are not read, because their scaling does not change any time.
- Phi-3 and Phi-3.5-MoE have separate frequencies for long contexts. They are used for every sequence,
  even a short one, if a model is loaded for more positions than it was trained with (`--max-model-len`).
- These variants are refused with an error that names the key: norms over queries and keys in Command-R+,
  Phi and StableLM 2 12B, and MPT without ALiBi.
- Llama 4's layers with chunked attention are timed as layers with a window as long as a chunk, and store
  as many tokens: their memory is bounded, and the blocks of a chunk are freed up to one chunk later. The
  norms of its queries and keys and the temperature scaling of later queries are computed, but take no
  time.
- Llama 4 and Gemma 3 are only the text decoder, without the vision encoder.
- DeepSeek's extra layers that predict further tokens are not part of the model.
- DeepSeek's latents have up to 576 elements, including the rotated ones. `norm_topk_prob` of a
  `deepseek_v2` is refused; transformers ignores it.
- Mixtures of experts route without noise, and do not drop tokens.
- Mamba-2 has a state of constant size for each sequence, in fp32, and no KV blocks: `--num-blocks` counts
  states, and `--block-size` and `--kv-cache-dtype` have no effect. At the host's pace some states are
  kept, 256 to 1,024 tokens apart, and a cached prefix is used up to the last of them. Its residual stream
  is rounded like that of every model, although `residual_in_fp32` asks for fp32. A norm covers all heads
  of a group, so the degree of `--tensor` must divide `n_groups`.
- Bamba has layers of both kinds. It has KV blocks for the layers with attention and a state for the
  others: `--num-blocks` counts KV blocks; `state_blocks_per_replica` of `/v1/placement` is the number of
  states. Half of each head is rotated, as in transformers (`attn_rotary_emb`).
- Granite 4 (`granitemoehybrid`) has blocks and states as Bamba does. Its heads are rotated only if
  `position_embedding_type` is `rope`. All of its published models have one group of norms, which
  `--tensor` cannot split: use `--pipeline` or `--expert`.
- OLMo 2, OLMo 3 and OLMoE apply a norm to all heads together, which `--tensor` cannot split: use
  `--pipeline`.
- T5's encoder runs only in the steps that read the source text.
- The batch norms of convolutional networks are folded into the convolutions, and the networks read square
  images; `image_size` and `num_labels` of a config set the image size and the number of classes.
  transformers has no config for VGG, U-Net and YOLOv4: they use the keys of ResNet's config
  (`hidden_sizes`, `depths`). Channels cannot be split: use `--data` or `--pipeline`.
- ModernBERT's windows extend in both directions, by half of their width each. A traced graph implements
  them as masks, so it takes as long as if every layer attended to the whole text.
- Timed encoders compute the base model's result: one vector for each sequence if the model has a pooler,
  otherwise one for each token. `"head": "masked-lm"` in a config selects the logits of every token
  (XLM-R's, as published).
- Published configs of quantised weights (DeepSeek-V3's fp8, gpt-oss's mxfp4) define only shapes;
  `--dtype` defines the format.
"""

_TASKS = """
## Tasks

The files of a checkpoint determine its task (`--task auto`), by the first of these rows that matches:

| the directory | is served for |
|---|---|
| has a `modules.json` with a pooling | vectors: the result of its modules |
| `...ForSequenceClassification` in `architectures`, one label | scores of pairs of texts |
| the same with more labels, `...ForTokenClassification` | classes of texts, or of each token |
| `...ForImageClassification`, also `...WithTeacher` | classes of [images](images.md) |
| a decoder | tokens |
| another encoder | vectors: the mean of its rows, as in sentence-transformers |

- A decoder with `--task embed` returns the vector of its last token; a decoder with a classification head
  is refused.
- Of the modules in directories of sentence-transformers, these are computed: Transformer, Pooling (one of
  {modes}), Dense ({functions}), Normalize. Several poolings together, other modules and other options are
  refused with an error that names the file and the key.
- Texts are truncated at `max_seq_length` of `sentence_bert_config.json`, or without it at the tokenizer's
  `model_max_length`, and always at the model's number of positions.
- A score of one label passes through a sigmoid, classes through a softmax (`problem_type` may select
  another function), unless `activation_fn` names one of {activations}.
- Logits of masked tokens are computed and compared with transformers, but no task returns them: none of
  the servers that have these routes fills in words, and a `...ForMaskedLM` is served for vectors.
- RoBERTa gives no position to a padding token whose text occurs in the input; here every token has one.
"""

_WEIGHTS = """
## Weights

Weights are read as fp32, one tensor after the other, and stored in the format of `--dtype`.

| file | tensors may be |
|---|---|
| `.safetensors`, model.safetensors or several with an index | {safetensors}; quantised: see below |
| `.gguf`, one or several (`-00001-of-00002.gguf`) | {blocks} |

Other types are refused before anything is read; the error names the tensor. These architectures of GGUF
files are supported: {architectures}. In such files Mistral and Mixtral are `llama`, OLMo 3 is `olmo2`,
and DeepSeek-V3 is `deepseek2`. Settings that a GGUF file does not contain are those of the published
models:

- Mixtral has no window; the bounds of gpt-oss's yarn are not rounded; the weights of DBRX's experts sum
  to 1, and OLMoE has no `clip_qkv`.
- Phi-3.5-MoE's `router_jitter_noise` is 0.01. The scale of its long contexts is that of the file;
  llama.cpp's converter computes it instead of reading the config's `long_mscale`.
- DeepSeek rotates neighbouring elements, and scales cosines like scores (`mscale` is `mscale_all_dim`).
  Files without groups of experts get the groups of the models with 160 experts (8 groups, of which a
  token uses 3) or 256 experts (8 groups, of which a token uses 4); other models have no groups.
- The steps of Mamba-2 and of Granite 4 have no limits.

Safetensors with a `quantization_config`:

| quant_method | weights |
|---|---|
| `fp8` | e4m3 with a scale for each block (`weight_block_size`) or tensor, as DeepSeek and vLLM write it |
| `fbgemm_fp8` | e4m3 with a scale for each channel |
| `compressed-tensors` | fp8 and integers of 1 to 8 bits; a scale for each tensor, channel, group or block |
| `gptq` | integers of four bits in groups of inputs, in both `checkpoint_format`s; without `desc_act` |
| `awq` | integers of four bits in groups of inputs (`gemm`) |
| `mxfp4` | floats of four bits in groups of 32 (gpt-oss's experts): read exactly, then stored in `--dtype` |

These formats of compressed-tensors are supported: {formats}; with zero points, and with columns in a
separate order (`actorder`). Others (MXFP4 in compressed-tensors, bitsandbytes and so on) are refused with
an error that names them. Each weight must match one of the config's groups. When it starts,
`corepipe serve --verbose` prints the type of the weights in the file and in memory:

    weights: fp8 in blocks of 128x128 -> read as fp32, stored as int8
    weights: Q4_1, Q8_0 -> Q4_1 as they are, others that are quantised as int8
    weights: MXFP4, Q8_0 -> MXFP4 as int4, quantised anew, others that are quantised as int8

The second line is that of `--dtype int4-weights`. It keeps Q4_0, Q4_1, Q4_K (its scales are rounded to
fp16), and integers of four bits in groups of a multiple of 32 as they are in the file, including the
weights of experts. The third line is that of a gpt-oss model: its four-bit values have unequal steps and
are quantised like floats.

Settings for activations and KV caches in these files have no effect: `--dtype` and `--kv-cache-dtype` set
their formats.

## Tokenizers

The tokenizer.json of a directory is read together with the files that transformers reads beside it, in
the same order:

- Special tokens are those of special_tokens_map.json, then those of tokenizer_config.json. If the latter
  has `added_tokens_decoder`, only its special tokens are used. Further tokens are those of
  added_tokens.json, or of `added_tokens_decoder`. Tokens that are not in the vocabulary get the next ids.
- tokenizer.json defines the tokens that are put around a text; `add_bos_token` and `add_eos_token` apply
  only to directories without it.
- The chat template is chat_template.jinja, with further ones in additional_chat_templates/; without this
  file it is `chat_template`, which is a text or a list of named templates. A template with the name
  `tool_use` is used for chats with tools.

Without tokenizer.json, transformers, if it is installed, converts tokenizer.model, vocab.json with
merges.txt, or vocab.txt to a tokenizer. A GGUF file contains its own tokenizer.
"""


def write(root: Path) -> None:
    """Writes docs/models.md, and the counts in the files of `COUNTED`, in the repository at `root`."""
    (root / "docs" / "models.md").write_text(reference(), encoding="utf-8")
    for name in COUNTED:
        page = root / name
        # ast-grep-ignore: bounded-reads -- a file of the repository
        page.write_text(with_counts(page.read_text(encoding="utf-8")), encoding="utf-8")


def reference() -> str:
    """Returns the whole page."""
    return "".join((_families(), _LIMITS, _tasks(), _weights(), *_names()))


def with_counts(text: str) -> str:
    """Returns a document with the current numbers of computed model types and named models, and the current
    size of the default model."""
    counts = {
        r"(?= model types\b)": len(computed_families()),
        r"(?= public models\b)": len(published.names()),
        r"(?= MB(?:\)| on disk\b))": round(PACKAGED[hub.DEFAULT_MODEL].size / 1e6),
    }
    for behind, count in counts.items():
        text = re.sub(rf"\b\d+{behind}", str(count), text)
    return text


def _families() -> str:
    computed = computed_families()
    intro = _INTRO.format(computed=len(computed), timed=len(FAMILIES) - len(computed))
    rows = [f"| `{name}` | {'computed' if name in computed else 'timed'} |" for name in sorted(FAMILIES)]
    return intro + "\n".join(("| model_type | |", "|---|---|", *rows)) + "\n"


def _tasks() -> str:
    return _TASKS.format(
        modes=_listed(MODES),
        functions=_listed(ACTIVATIONS),
        activations=_listed(SCORES),
    )


def _weights() -> str:
    return _WEIGHTS.format(
        safetensors=_listed(DTYPES),
        blocks=_listed(t.name for t in BLOCK_TYPES.values()),
        architectures=_listed(GGUF_FAMILIES),
        formats=_listed(FORMATS),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _names() -> Iterator[str]:
    """Yields a line for each shape, with all its names."""
    shapes: dict[str, list[str]] = {}
    for name in published.names():
        shapes.setdefault(str(published.config(name)), []).append(name)
    yield _NAMES.format(names=len(published.names()), shapes=len(shapes))
    yield "| model_type | parameters | names |\n"
    yield "|---|---|---|\n"
    rows = [_row(names) for names in shapes.values()]
    yield from (f"| {kind} | {_count(size)} | {', '.join(names)} |\n" for kind, size, names in sorted(rows))


def _row(names: list[str]) -> tuple[str, int, list[str]]:
    model = registry.architecture(names[0])
    return model.config.model_type, model.parameters, [f"`{name}`" for name in names]


def _count(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f} B"
    return f"{parameters / 1e6:.0f} M" if parameters >= 1e7 else f"{parameters / 1e6:.1f} M"


if __name__ == "__main__":
    write(Path(__file__).parents[2])
