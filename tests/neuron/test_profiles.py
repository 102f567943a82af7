"""Runtime profiles: buckets, padding, and the files that `corepipe fit` writes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.neuron.chips.constants import as_json, shipped
from corepipe.neuron.chips.profiles import PROFILES, as_text, profile
from corepipe.neuron.chips.runtime_profile import Buckets, pad, pad_contexts
from corepipe.neuron.step import StepShape
from corepipe.scheduler.next_batch import policy


def test_every_profile_names_its_source_and_a_policy():
    for name, known in PROFILES.items():
        assert known.name == name
        assert known.source
        assert policy(known.policy)
        assert known.host_seconds >= 0
        assert known.workers >= 1


@pytest.mark.parametrize(
    ("buckets", "length", "padded"),
    [
        (Buckets.EXACT, 77, 77),
        (Buckets.POWERS, 1, 128),
        (Buckets.POWERS, 128, 128),
        (Buckets.POWERS, 129, 256),
        (Buckets.POWERS, 2049, 3000),
        (Buckets.POWERS, 3001, 3001),
        (Buckets.SINGLE, 5, 3000),
    ],
)
def test_buckets(buckets, length, padded):
    assert buckets.pad(length, longest=3000) == padded


@given(st.sampled_from(sorted(PROFILES)), st.integers(1, 40), st.lists(st.integers(1, 9000), min_size=1))
def test_many_contexts_are_padded_like_one(name, sequences, means):
    known, batch = PROFILES[name], 32
    tokens = np.array([sequences * mean for mean in means], np.int64)
    running, contexts = pad_contexts(sequences, tokens, known, 4096, batch)
    for kv_tokens, context in zip(tokens.tolist(), contexts.tolist(), strict=True):
        one = pad(StepShape.decoding(sequences, kv_tokens), known, 4096, batch)
        assert (one.sequences, one.kv_tokens) == (running, context)


SHAPES = st.builds(
    StepShape.of,
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 600)), min_size=1, max_size=8),
    st.integers(0, 8),
)


@given(st.sampled_from(sorted(PROFILES)), SHAPES)
def test_padding_takes_nothing_away(name, shape):
    padded = pad(shape, PROFILES[name], 2048, None)
    assert padded.rows >= shape.rows
    assert padded.kv_tokens >= shape.kv_tokens
    if len({shape.rows // shape.sequences, shape.rows / shape.sequences}) == 1:
        assert pad(padded, PROFILES[name], 2048, None) == padded


def test_decode_runs_the_sequences_of_its_graph():
    shape = StepShape.decode(3, 1000)
    assert pad(shape, PROFILES["nxdi"], 4096, 8) == StepShape.decode(8, 1024)
    assert pad(shape, PROFILES["optimum-nxdi"], 4096, 8) == StepShape.decode(8, 4096)
    assert pad(shape, PROFILES["async"], 4096, 8) == shape


def test_a_prompt_fills_its_bucket():
    """Its causal kernel skips masked scores; a square one does not."""
    shape = StepShape.of([(0, 1000)], 1)
    assert pad(shape, PROFILES["nxdi"], 4096, None, lnc=2) == StepShape.of([(0, 1024)], 1)
    square = pad(shape, PROFILES["transformers-neuronx"], 4096, None)
    assert square.attended == 1024 * 1024


def test_a_file_refines_a_profile(tmp_path):
    constants = replace(shipped()["v2"], memory_efficiency=0.5)
    changes = {"name": "mine", "source": "here", "constants": (("v2", constants),), "refines": "nxdi"}
    refined = replace(PROFILES["nxdi"], **changes)
    (tmp_path / "mine.json").write_text(as_text(refined, "nxdi", {"rows": 3}))
    read = profile(str(tmp_path / "mine.json"))
    assert read == refined
    assert read.constants_of("v2") == constants
    assert read.constants_of("v1") == shipped()["v1"]


GOOD = as_json(shipped()["v2"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"name": "x", "base": "nxdi", "source": "", "constants": {"v2": {}}}',
        '{"name": "x", "base": "none", "source": "", "constants": {}}',
        json.dumps({"name": "x", "base": "nxdi", "source": "", "constants": {"v9": GOOD}}),
    ],
)
def test_what_is_no_profile(tmp_path, text):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(UserError, match="not a profile"):
        profile(str(file))


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(UserError, match="nxdi"):
        profile("no-such")
