"""A tokenizer from GGUF metadata: byte-level BPE ("gpt2") and sentencepiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_config import token_id
from corepipe.models.text.gguf_splits import SPLITS
from corepipe.models.text.tokenizer import Tokenizer, byte_alphabet, set_bos_eos

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
UNJOINED = (UNKNOWN, CONTROL, BYTE)
ADDED = (CONTROL, USER_DEFINED)
"""Kinds of tokens that are texts, not spelled in the alphabet of bytes."""


def from_gguf(file: GgufFile, eos_ids: Iterable[int] = ()) -> Tokenizer:
    """Makes a file's tokenizer. Raises UserError for unknown kinds and broken vocabularies."""
    kind = file.metadata.get("tokenizer.ggml.model")
    tokens = _strings(file, "tokens")
    if kind == "gpt2":
        backend, add_bos = _byte_level(file, tokens), file.metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    elif kind == "llama":
        backend, add_bos = _sentencepiece(file, tokens), True
    else:
        raise UserError(f"{file.path}: tokenizer.ggml.model is {shown(repr(kind), 40)} (known: gpt2, llama)")
    _add_special(file, backend, tokens)
    special = {
        f"{name}_token": tokens[i]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (i := _id(file, key, len(tokens))) is not None
    }
    _put_around(file, backend, special, add_bos=add_bos)
    template = file.metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, special, template if isinstance(template, str) else None, eos_ids)


def _put_around(file: GgufFile, backend: Backend, special: Mapping[str, str], *, add_bos: bool) -> None:
    """Makes `encode` put bos and eos around every text, where the file wants them.

    add_bos: the default where the file does not decide. Raises UserError for a token that is wanted and
    missing.
    """
    bos = _wanted(file, special, "bos", default=add_bos and "tokenizer.ggml.bos_token_id" in file.metadata)
    eos = _wanted(file, special, "eos", default=False)
    set_bos_eos(backend, bos, eos, file.path)


def _wanted(file: GgufFile, special: Mapping[str, str], name: str, *, default: bool) -> str | None:
    """Returns the token to put at an end of every text; None: none. Raises UserError where it is missing."""
    if not file.metadata.get(f"tokenizer.ggml.add_{name}_token", default):
        return None
    if f"{name}_token" not in special:
        raise UserError(
            f"{file.path}: tokenizer.ggml.{name}_token_id names no token, but texts are to have one "
            f"(tokenizer.ggml.add_{name}_token)"
        )
    return special[f"{name}_token"]


def _strings(file: GgufFile, key: str) -> list[str]:
    values = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise UserError(f"{file.path}: tokenizer.ggml.{key} is missing or not a list of strings")
    return values


def _id(file: GgufFile, key: str, count: int) -> int | None:
    value = token_id(file, key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise UserError(
            f"{file.path}: tokenizer.ggml.{key}_token_id is {shown(repr(value), 40)}, outside the vocabulary"
        )
    return value


def _bpe(
    file: GgufFile, vocab: dict[str, int], merges: list[tuple[str, str]], sentencepiece: bool
) -> Backend:
    ignore_merges = file.metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    try:
        model = models.BPE(
            vocab, merges, fuse_unk=sentencepiece, byte_fallback=sentencepiece, ignore_merges=ignore_merges
        )
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"{file.path}: tokenizer.ggml.merges do not fit the vocabulary: {shown(str(error), 200)}"
        ) from error
    return Backend(model)


def _byte_level(file: GgufFile, tokens: list[str]) -> Backend:
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in SPLITS:
        raise UserError(
            f"{file.path}: tokenizer.ggml.pre is {shown(repr(name), 60)} (known: {', '.join(SPLITS)})"
        )
    vocab = {token: i for i, token in enumerate(_spelled(file, tokens))}
    backend = _bpe(file, vocab, _listed_merges(file), sentencepiece=False)
    cuts = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in SPLITS[name]]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_of])
    backend.decoder = decoders.ByteLevel()
    return backend


def _spelled(file: GgufFile, tokens: list[str]) -> list[str]:
    """Returns the tokens in the alphabet of bytes, which most files use already."""
    alphabet = byte_alphabet()
    spelled = set(alphabet.values())
    if spelled.issuperset("".join(tokens)):  # checking them one by one would take longer than all else here
        return tokens
    return [
        token
        if kind in ADDED or spelled.issuperset(token)
        else "".join(alphabet[byte] for byte in token.encode())
        for token, kind in zip(tokens, _kinds(file, tokens), strict=True)
    ]


def _listed_merges(file: GgufFile) -> list[tuple[str, str]]:
    pairs = (line.partition(" ") for line in _strings(file, "merges"))
    return [(left, right) for left, _, right in pairs]


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Backend:
    vocab = {token: i for i, token in enumerate(tokens)}
    listed = "tokenizer.ggml.merges" in file.metadata
    merges = _listed_merges(file) if listed else _merges_from_scores(file, tokens, vocab)
    backend = _bpe(file, vocab, merges, sentencepiece=True)
    prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    scheme = "first" if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(content=" ", left=1)] if prefix else [])])
    return backend


def _merges_from_scores(file: GgufFile, tokens: list[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Lists every way to join two tokens to a third, best score first, as sentencepiece joins them.

    It joins nothing to a token of kind control or byte, however it is spelled.
    """
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise UserError(f"{file.path}: tokenizer.ggml.scores must have one entry a token")
    kinds = _kinds(file, tokens)
    found = []
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        if kind not in UNJOINED:
            for at in range(1, len(token)):
                left = vocab.get(token[:at])
                right = None if left is None else vocab.get(token[at:])
                if right is not None:
                    found.append((-score, at, left, right, token))
    found.sort()
    return [(token[:at], token[at:]) for _, at, _, _, token in found]


def _kinds(file: GgufFile, tokens: list[str]) -> list[object]:
    """Returns the kind of each token; all are ordinary where the file does not list them."""
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    return kinds if isinstance(kinds, list) and len(kinds) == len(tokens) else [NORMAL] * len(tokens)


def _add_special(file: GgufFile, backend: Backend, tokens: list[str]) -> None:
    """Adds control tokens, which are skipped when decoding, and user-defined ones; both match whole."""
    listed = list(zip(tokens, _kinds(file, tokens), strict=True))
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in listed if k == CONTROL]
    )
    backend.add_tokens([AddedToken(t, normalized=False) for t, k in listed if k == USER_DEFINED])
