"""Incremental text equals whole text; stop strings are found wherever tokens split them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from corepipe.answers.parts import Detokenizer, Pieces, StopStrings
from corepipe.models.text.tokenizer import Tokenizer
from tests.serving.http_support import tokenizer

SHOWN = Pieces(tokenizer(), skip_special_tokens=True)
RAW = Pieces(tokenizer(), skip_special_tokens=False)
TOKENS = st.lists(st.integers(0, tokenizer().vocab_size - 1), max_size=60)


@given(TOKENS, st.data())
@settings(deadline=None)
@pytest.mark.parametrize("skip", [True, False])
def test_deltas_join_to_the_full_decode(skip, tokens, data):
    detokenizer = Detokenizer(SHOWN if skip else RAW)
    text, rest = "", tokens
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        delta, used = detokenizer.feed(rest[:size])
        assert used == size
        text, rest = text + delta, rest[size:]
    text += detokenizer.flush()
    assert text == tokenizer().decode(tokens, skip_special_tokens=skip)
    assert detokenizer.decoded == len(text)


@given(st.text(max_size=40))
@settings(deadline=None)
def test_text_that_was_encoded_never_shows_a_replacement_character(text):
    detokenizer = Detokenizer(SHOWN)
    deltas = [detokenizer.feed([token])[0] for token in tokenizer().encode(text, add_special_tokens=False)]
    assert "".join(deltas) == text
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


def test_bytes_of_an_unfinished_character_are_kept_back():
    tokens = tokenizer().encode("🎈", add_special_tokens=False)
    assert len(tokens) > 1
    detokenizer = Detokenizer(SHOWN)
    assert [detokenizer.feed([token])[0] for token in tokens] == [""] * (len(tokens) - 1) + ["🎈"]
    detokenizer.feed(tokens[:1])
    assert detokenizer.flush() == "\ufffd"


ALPHABET = st.text("ab", max_size=30)


def cut(text, stops, include):
    """Cuts a text by the definition: at the stop string that is complete first, of these the longest."""
    ends = [(end, end - len(s), s) for s in stops for end in range(len(text) + 1) if text[:end].endswith(s)]
    if not ends:
        return text, None
    end, start, stop = min(ends)
    return text[: end if include else start], stop


@given(ALPHABET, st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
@settings(deadline=None, max_examples=300)
@pytest.mark.parametrize("include", [True, False])
def test_stop_strings_are_found_across_any_split(include, text, stops, data):
    finder, shown, rest = StopStrings(stops, include), "", text
    while rest and finder.matched is None:
        size = data.draw(st.integers(1, len(rest))) if len(rest) > 1 else 1
        # A piece that holds two stop strings is cut at the one that is complete first.
        shown, rest = shown + finder.feed(rest[:size]), rest[size:]
    if finder.matched is None:
        shown += finder.flush()
    assert (shown, finder.matched) == cut(text, stops, include)


def test_text_is_kept_back_only_while_it_may_become_a_stop_string():
    finder = StopStrings(["\n\nUser:"], include=False)
    assert finder.feed("fine\n") == "fine"
    assert finder.feed("\nUs") == ""
    assert finder.feed("ually") == "\n\nUsually"
    assert finder.matched is None


def test_tokens_are_counted_up_to_the_stop_string():
    tokens = tokenizer().encode("one two three", add_special_tokens=False)
    detokenizer = Detokenizer(SHOWN, ["tw"])
    text, used = detokenizer.feed(tokens)
    assert text == "one "
    assert detokenizer.matched == "tw"
    assert tokenizer().decode(tokens[:used]).startswith("one tw")
    assert "tw" not in tokenizer().decode(tokens[: used - 1])


def test_stop_strings_count_only_after_min_tokens():
    tokens = tokenizer().encode("a a a a", add_special_tokens=False)
    detokenizer = Detokenizer(SHOWN, ["a"], min_tokens=2)
    assert detokenizer.feed(tokens) == ("a a ", 3)


def byte_fallback_tokenizer():
    """Makes a tokenizer like Llama 2's: U+2581 for a space, `<0x..>` for bytes, and a first space to drop."""
    words = {f"<0x{byte:02X}>": byte for byte in range(256)}
    words |= {word: 256 + at for at, word in enumerate(["<unk>", "▁", "a", "b", "▁a", "▁b"])}
    backend = Backend(models.BPE(words, [("▁", "a"), ("▁", "b")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend, {}, None)


FALLBACK = byte_fallback_tokenizer()


@given(st.text(st.sampled_from("ab é日🎈\n"), max_size=20))
@settings(deadline=None)
def test_byte_fallback_keeps_the_space_that_joins_an_answer_to_its_prompt(text):
    tokens = FALLBACK.encode(text)
    detokenizer = Detokenizer(Pieces(FALLBACK, skip_special_tokens=True))
    deltas = [detokenizer.feed([token])[0] for token in tokens]
    assert "".join(deltas) == (" " + text if tokens else "")
    assert FALLBACK.decode(tokens) == text
    assert not any("\ufffd" in delta for delta in deltas)
