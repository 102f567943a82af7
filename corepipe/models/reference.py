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

Every command that takes a model takes a directory of the Hugging Face layout, a `config.json`, a `.gguf`
file, or one of the names below. `corepipe serve` computes tokens and needs weights; `simulate`, `plan`,
`predict` and `profile` need the shape alone: there a name is enough, and nothing is downloaded.

A name may be written as the model hub has it: case, the organisation before the slash, hyphens and endings
such as `-Instruct`, `-hf`, `-uncased` or `-v0.1` do not matter, except where two shapes differ in them
(`bert-base` and `bert-base-cased` have other vocabularies).

## Families

By `model_type` of a config.json. **Computed** families are served, {computed} model types; {timed} others
are timed, not computed yet: they can be simulated, planned and predicted.

"""

_NAMES = """
## Names

{names} public models by name, of {shapes} shapes.

"""

COUNTED = ("README.md", "docs/deploy.md", "corepipe/cli/serve.py")
"""Files beside docs/models.md that state how many models there are, from the root of the repository."""

_LIMITS = """
What the Graphs of these families leave out, or have in a simpler form:

- Rotary frequencies of timed families are not read: their scaling changes no time.
- Phi-3's and Phi-3.5-MoE's long contexts have frequencies of their own. They are used for every sequence,
  even a short one, where a model is loaded for more positions than it was trained with (`--max-model-len`).
- Variants are refused by the key that selects them: norms over queries and keys in Command-R+, Phi and
  StableLM 2 12B, MPT without ALiBi.
- Llama 4's layers with chunked attention are timed as if they had a window as long as a chunk, and keep as
  many tokens: their memory is bounded, and a chunk's blocks are freed up to one chunk later. Norms of its
  queries and keys and the tempering of later queries are computed, and take no time.
- Llama 4 and Gemma 3 are the text decoder alone, without the vision encoder.
- DeepSeek's extra layers that predict further tokens are not part of the model.
- DeepSeek's latents have up to 576 elements, rotated ones included; `norm_topk_prob` of a `deepseek_v2` is
  refused, while transformers ignores it.
- Mixtures of experts route without noise, and drop no token.
- Mamba-2 keeps a state of constant size for a sequence, in fp32, and no KV blocks: `--num-blocks` counts
  states, `--block-size` and `--kv-cache-dtype` have no effect. At the host's pace some states are kept, 256
  to 1,024 tokens apart, and a cached prefix is used up to the last of them. Its residual stream is rounded
  as every model's, although `residual_in_fp32` asks for fp32. A norm goes over all heads of a group: the
  degree of `--tensor` divides `n_groups`.
- Bamba has layers of either kind, and keeps KV blocks for those with attention and a state for the others:
  `--num-blocks` counts KV blocks; `state_blocks_per_replica` of `/v1/placement` says how many states there
  are. Half of each head is rotated, as in transformers (`attn_rotary_emb`).
- Granite 4 (`granitemoehybrid`) keeps blocks and states as Bamba does. Its heads are rotated only where
  `position_embedding_type` is `rope`. All of its published models have one group of norms, which `--tensor`
  cannot cut: they take `--pipeline`, or `--expert`.
- OLMo 2, OLMo 3 and OLMoE norm all heads at once, which `--tensor` cannot cut: they take `--pipeline`.
- T5's encoder runs only in the steps that read the source.
- Convolutional networks have their batch norms folded in, and read square images; a config's `image_size`
  and `num_labels` give their size and the number of classes. transformers has no config for VGG, U-Net and
  YOLOv4: they have the keys of ResNet's (`hidden_sizes`, `depths`). Channels are not cut: use `--data`, or
  `--pipeline`.
- ModernBERT's windows reach in both directions, half of their width each. A traced graph has them as masks:
  it takes as long as if every layer attended to the whole text.
- Encoders that are timed compute the base model's result: a vector a sequence where it has a pooler,
  otherwise one a token. `"head": "masked-lm"` in a config asks for the logits of every token (XLM-R's, as
  published).
- Published configs of quantised weights (DeepSeek-V3's fp8, gpt-oss's mxfp4) give shapes; `--dtype`
  gives the format.
"""

_TASKS = """
## Tasks

A checkpoint's files decide its task (`--task auto`), by the first of these that fits:

| the directory | is served for |
|---|---|
| has a `modules.json` with a pooling | vectors: the result of its modules |
| `...ForSequenceClassification` in `architectures`, one label | scores of pairs of texts |
| the same with more labels, `...ForTokenClassification` | classes of texts, or of each token |
| `...ForImageClassification`, also `...WithTeacher` | classes of [images](images.md) |
| a decoder | tokens |
| another encoder | vectors: the mean of its rows, as in sentence-transformers |

- A decoder with `--task embed` returns its last token's vector; a decoder's head of classes is refused.
- Of sentence-transformers' directories these modules are computed: Transformer, Pooling (one of {modes}),
  Dense ({functions}), Normalize.
  Several poolings at once, other modules and other options are refused by file and key.
- Texts are truncated at `max_seq_length` of `sentence_bert_config.json`, else at the tokenizer's
  `model_max_length`, and in any case at the model's positions.
- Scores of one label go through a sigmoid, classes through a softmax (`problem_type` may say otherwise),
  unless `activation_fn` names one of {activations}.
- Logits of masked tokens are computed and compared with transformers, but no task returns them: no server
  with these routes fills in words, and a `...ForMaskedLM` is served for vectors.
- RoBERTa gives no position to padding tokens that a text spells; here every token has one.
"""

_WEIGHTS = """
## Weights

Weights are read as fp32, tensor by tensor, and stored in the format of `--dtype`.

| file | tensors may be |
|---|---|
| `.safetensors`, model.safetensors or several with an index | {safetensors}; quantised: see below |
| `.gguf`, one or several (`-00001-of-00002.gguf`) | {blocks} |

Other types are refused by the tensor's name before anything is read. Of GGUF files these
architectures are read: {architectures}.
Mistral and Mixtral are `llama` there, OLMo 3 is `olmo2`, DeepSeek-V3 is `deepseek2`. Settings that such a
file lacks are those of the published models:

- Mixtral has no window; gpt-oss's bounds of yarn are not rounded; weights of DBRX's experts sum to 1, and
  OLMoE has no `clip_qkv`.
- Phi-3.5-MoE's `router_jitter_noise` is 0.01. The scale of its long contexts is the file's,
  which llama.cpp's converter computes instead of reading the config's `long_mscale`.
- DeepSeek rotates neighbours, and scales cosines like scores (`mscale` is `mscale_all_dim`). Files without
  groups of experts have those of the models with 160 (8, of which a token takes 3) or 256 experts (8, and
  4); others have none.
- Mamba-2's steps have no limits, Granite 4's neither.

Safetensors with a `quantization_config`:

| quant_method | weights |
|---|---|
| `fp8` | e4m3 with a scale a block (`weight_block_size`) or a tensor, as DeepSeek and vLLM write it |
| `fbgemm_fp8` | e4m3 with a scale a channel |
| `compressed-tensors` | fp8 and integers of 1 to 8 bits with a scale a tensor, channel, group or block |
| `gptq` | integers of four bits in groups of inputs, in both `checkpoint_format`s; without `desc_act` |
| `awq` | integers of four bits in groups of inputs (`gemm`) |
| `mxfp4` | floats of four bits in groups of 32, as gpt-oss's experts: exact, then in the format asked for |

Of compressed-tensors these formats are read: {formats}; with zero points, and with columns in an order
of their own (`actorder`). Others (MXFP4 in them, bitsandbytes and so on) are refused by name. Each weight
must be as one of the config's groups says. `corepipe serve --verbose` prints at its start the weights' type
in the file and in memory:

    weights: fp8 in blocks of 128x128 -> read as fp32, stored as int8
    weights: Q4_1, Q8_0 -> Q4_1 as they are, others that are quantised as int8
    weights: MXFP4, Q8_0 -> MXFP4 as int4, quantised anew, others that are quantised as int8

The second line is of `--dtype int4-weights`, which keeps Q4_0, Q4_1, Q4_K (its scales rounded to fp16), and
integers of four bits in groups of a multiple of 32, as the file has them, those of experts included. The
third is a gpt-oss's: its four-bit values have unequal steps and are quantised like floats.

Settings for activations and KV caches have no effect: `--dtype` and `--kv-cache-dtype` give their formats.

## Tokenizers

A directory's tokenizer.json is read, with the files that transformers reads beside it, in its order:

- Special tokens are those of special_tokens_map.json, then of tokenizer_config.json; where the latter has
  `added_tokens_decoder`, only its own. Further tokens are those of added_tokens.json, or of that list.
  Tokens that the vocabulary lacks get the next ids.
- tokenizer.json defines the tokens put around a text; `add_bos_token` and `add_eos_token` are for
  directories without it.
- The chat template is chat_template.jinja, with others in additional_chat_templates/, else `chat_template`,
  a text or named ones. One named `tool_use` is for chats with tools.

Without tokenizer.json, transformers converts tokenizer.model, vocab.json with merges.txt, or
vocab.txt to a tokenizer, if it is installed. A GGUF file has its own.
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
