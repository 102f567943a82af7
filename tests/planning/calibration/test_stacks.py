"""Tests of the software that a row was measured with."""

from __future__ import annotations

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron.formats import FORMATS
from corepipe.planning.calibration.rows import RowDegrees, Unpredictable
from corepipe.planning.calibration.stacks import ModelTraits, profile_of


@pytest.mark.parametrize(
    ("task", "sdk", "batch", "name"),
    [
        ("static-batch(optimum-neuron)", "n/s (2024-06-18)", 8, "optimum-tnx"),
        ("static-batch(optimum-neuron)", "n/s (2024-06-18)", 1, "transformers-neuronx"),
        ("static-batch(optimum-neuron)", "n/s (2025-06-04)", 8, "optimum-nxdi"),
        ("static-batch(optimum-neuron)", "", 8, "optimum-nxdi"),
        ("text-generation", "2.18.1", 1, "transformers-neuronx"),
        ("text-generation", "2.22.0", 1, "nxdi"),
        ("text-generation", "2.2x", 1, "nxdi"),
        ("text-generation", "", 1, "nxdi"),
        ("text-generation(in+out)", "2.14.0", 1, "transformers-neuronx-hsb"),
        ("serving", "2.2x", 32, "stack-unknown"),
        ("serving-tgi", "2.18-2.19", 4, "optimum-tnx"),
        ("Encoder", "2.26.0", 4, "data-parallel"),
        ("encoder", "2.10.0", 4, "data-parallel"),
        ("encoder", "2.9.1", 4, "data-parallel-sdk-2.9"),
    ],
)
def test_task_and_release_name_the_profile(task, sdk, batch, name):
    row = {"task": task, "sdk": sdk, "instance": "inf2.48xlarge"}
    assert profile_of(row, batch, RowDegrees()).name == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("results.csv 2025-06-04-13-34-44 users=128", "optimum-nxdi"),
        ("benchmark/text-generation-inference/a.csv 2025-06-04-13-34-44", "optimum-nxdi-tgi"),
        ("results.csv 2024-12-06-10-00-00 users=128", "optimum-tnx-host-sampling"),
        ("results; published on 2026-11-27", "stack-unknown"),
    ],
)
def test_a_server_is_known_by_the_day_of_its_report(source, name):
    row = {"task": "serving", "sdk": "2.2x", "instance": "inf2.48xlarge", "source": source}
    assert profile_of(row, 8, RowDegrees()).name == name
    assert profile_of({**row, "profile": "vllm-neuron"}, 8, RowDegrees()).name == "vllm-neuron"


def test_trn2_has_the_buckets_of_its_tutorials():
    row = {"task": "text-generation", "sdk": "2.22.0", "instance": "trn2.48xlarge"}
    found = profile_of(row, 1, RowDegrees(tensor=64))
    assert (found.name, found.sequence_parallel) == ("nxdi-trn2", True)
    assert [found.prefill_buckets.pad(n, 12800) for n in (1, 2049, 10000, 12500)] == [
        2048,
        4096,
        10240,
        12800,
    ]


def test_encoders_on_inf1():
    row = {"task": "encoder", "instance": "inf1.6xlarge"}
    assert profile_of(row, 1, RowDegrees(pipeline=16)).name == "neuroncore-pipeline"
    assert profile_of(row, 1, RowDegrees(data=4)).name == "data-parallel-2"
    assert profile_of(row, 1, RowDegrees()).name == "data-parallel"
    assert profile_of({**row, "sdk": "2.9.0"}, 1, RowDegrees()).name == "data-parallel"


def test_images_have_two_batches_in_flight_since_inf2():
    for task in ("cnn", "vision", "encoder"):
        row = {"task": task, "instance": "inf2.xlarge"}
        assert profile_of(row, 8, RowDegrees(data=2), ModelTraits(images=True)).name == "data-parallel-2"
        assert profile_of(row, 1, RowDegrees(), ModelTraits(images=True)).name == "data-parallel"
        assert (
            profile_of({**row, "sdk": "2.9.0"}, 1, RowDegrees(), ModelTraits(images=True)).name
            == "data-parallel"
        )
    row = {"task": "cnn", "instance": "inf1.xlarge"}
    assert profile_of(row, 5, RowDegrees(data=4), ModelTraits(images=True)).name == "data-parallel"


@pytest.mark.parametrize("task", ["text-generation(in+out)", "encoder-decoder", "encoder-decoder(in+out)"])
def test_encoder_decoders_search_with_beams(task):
    row = {"task": task, "sdk": "2.18.0", "instance": "inf2.24xlarge"}
    assert profile_of(row, 1, RowDegrees(), ModelTraits(translates=True)).name == "beam-search"
    assert profile_of(row, 1, RowDegrees()).name != "beam-search"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("resnet-50", ModelTraits(images=True)),
        ("vit-base", ModelTraits(images=True)),
        ("flan-t5-xl", ModelTraits(translates=True)),
        ("bert-base", ModelTraits()),
        ("llama-3-8b", ModelTraits()),
    ],
)
def test_a_graph_says_what_it_is(model, kind):
    assert ModelTraits.of(architecture(model).graph(FORMATS["bf16"])) == kind


def test_the_profile_column_wins():
    row = {"task": "encoder", "instance": "inf2.xlarge", "profile": "nxdi"}
    assert profile_of(row, 1, RowDegrees()).name == "nxdi"


@pytest.mark.parametrize("row", [{}, {"task": "x"}, {"task": "encoder", "profile": "?"}])
def test_what_is_not_known(row):
    with pytest.raises(Unpredictable):
        profile_of(row, 1, RowDegrees())
