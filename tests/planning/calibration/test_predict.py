"""Tests of predictions of rows: units, reasons, columns without an effect, and hostile rows."""

from __future__ import annotations

import csv
import json
from functools import cache
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.models.published import config
from corepipe.neuron.chips.constants import IDEAL, shipped
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.rules import DRIFT

DECODER = {
    "instance": "inf2.48xlarge",
    "model": "llama-3.1-8b",
    "task": "static-batch(optimum-neuron)",
    "dtype": "bf16",
    "parallelism": "TP8",
    "batch_size": "4",
    "input_len": "1024",
    "output_len": "256",
    "metric": "tpot",
    "unit": "ms",
    "percentile": "mean",
    "sdk": "n/s (2025-06-04)",
    "seq_len": "4096",
}
ENCODER = DECODER | {
    "instance": "inf2.xlarge",
    "model": "bert-base",
    "task": "encoder",
    "dtype": "fp32+matmult-bf16",
    "parallelism": "DP2",
    "input_len": "128",
    "output_len": "0",
    "metric": "latency",
    "percentile": "p50",
    "sdk": "2.26.0",
    "seq_len": "128",
}
EARLY = "n/s (2024-06-18)"
SERVING = DECODER | {"task": "serving", "arrival": "poisson", "rate": "1.5", "metric": "ttft"}


TGI = {"profile": "optimum-tnx", "input_len": "870", "output_len": "218"}
"""Tokens of the stack of `serving-tgi` for SERVING's, which llmperf counts: 0.85 of them."""


@cache
def cases() -> Cases:
    return Cases()


def value(row: dict[str, str], **changes: str) -> float:
    found = Predictor(cases=cases()).predict(row | changes)
    assert found.value is not None, found.reason
    return found.value


def reason(row: dict[str, str], **changes: str) -> str:
    found = Predictor(cases=cases()).predict(row | changes)
    assert found.value is None
    return found.reason


def test_units_and_metrics_agree():
    seconds = value(DECODER, unit="s")
    assert value(DECODER) == pytest.approx(1e3 * seconds)
    first = value(DECODER, metric="ttft", unit="s")
    total = value(DECODER, metric="request_latency", unit="s")
    assert total == pytest.approx(first + 255 * seconds)
    assert value(DECODER, metric="output_throughput", unit="tokens/s") == pytest.approx(4 * 256 / total)
    assert value(DECODER, metric="total_throughput", unit="tokens/s") == pytest.approx(4 * 1280 / total)
    assert value(DECODER, metric="request_rate", unit="req/s") == pytest.approx(4 / total)


def test_order_of_magnitude():
    """16 GB of weights on 8 cores of 820 GiB/s a chip: 4.6 ms, and the collectives of 32 layers."""
    assert 6 < value(DECODER, batch_size="1") < 16
    assert (
        value(DECODER, batch_size="1")
        > Predictor(dict.fromkeys(shipped(), IDEAL)).predict(DECODER | {"batch_size": "1"}).value
    )


def test_a_static_batch_is_padded():
    """One bucket: neither the prompt's nor the context's length matters."""
    assert value(DECODER, input_len="512") == value(DECODER)
    assert value(DECODER, metric="ttft", input_len="100") == value(DECODER, metric="ttft")
    assert value(DECODER, metric="ttft") == pytest.approx(4 * value(DECODER, metric="ttft", batch_size="1"))


def test_the_software_decides():
    times = {
        value(DECODER, profile=name) for name in ("nxdi", "optimum-nxdi", "transformers-neuronx", "ideal")
    }
    assert len(times) == 4
    assert "no-such" in reason(DECODER, profile="no-such")


@pytest.mark.parametrize("column", ["family", "source", "value", "config_id", "weight_class", "params_b"])
def test_what_must_not_matter(column):
    assert value(DECODER, **{column: "anything"}) == value(DECODER)


def test_nothing_hangs_on_a_name(tmp_path):
    """The same shape under another name, and as a config.json, is predicted alike."""
    file = tmp_path / "opt-350m" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(config("llama-3.1-8b")))
    assert value(DECODER, model=str(file)) == value(DECODER)
    assert value(DECODER, model="meta-llama/Llama-3.1-8B-Instruct") == value(DECODER)


def test_encoders():
    one, many = value(ENCODER, batch_size="1"), value(ENCODER, batch_size="16")
    assert 0.3 < one < many < 30
    rate = value(ENCODER, metric="throughput", unit="inferences/s", batch_size="1")
    assert rate == pytest.approx(2 / (one / 1e3))
    assert value(ENCODER, input_len="0", seq_len="0") == value(ENCODER)


def test_results_are_copied_to_the_host():
    """The published rows of XLM-R: 128 x 250002 fp32 logits a text take 40 ms, 16 of them 626."""
    one = value(ENCODER, model="xlm-roberta-base", batch_size="1")
    many = value(ENCODER, model="xlm-roberta-base", batch_size="16")
    assert one == pytest.approx(40.5, rel=0.08)
    assert many == pytest.approx(626, rel=0.08)
    assert value(ENCODER, model="multilingual-e5-base", batch_size="1") < one / 20
    assert value(ENCODER, model="bert-base") > value(ENCODER, model="bert-base", dtype="bf16")


def test_results_took_as_long_again_before_sdk_2_10():
    """Published of BERT, RoBERTa and DistilBERT: 128 x 768 fp32 of each text at 3.4 GB a second."""
    early, late = (value(ENCODER, sdk=sdk, batch_size="4") for sdk in ("2.9.0", "2.20.0"))
    assert early - late == pytest.approx(1e3 * 4 * 128 * 768 * 4 / 3.4e9)


def test_encoders_of_texts_became_faster_with_each_release():
    known = [value(ENCODER, sdk=f"2.{release}.0") for release in (10, 20, 28)]
    assert known[0] > known[1] > known[2]
    assert known[0] / known[2] == pytest.approx(exp(18 * DRIFT), rel=0.02)
    images = ENCODER | {"model": "vit-base", "task": "vision", "input_len": "224"}
    assert value(images, sdk="2.10.0") == value(images, sdk="2.28.0")


def test_optimums_benchmark_sent_a_token_more_until_2024():
    row = DECODER | {
        "task": "static-batch(optimum-neuron)",
        "batch_size": "1",
        "metric": "ttft",
        "input_len": "512",
    }
    at, beyond, below = (
        value(row, sdk=sdk, input_len=n) for sdk, n in ((EARLY, "512"), (EARLY, "600"), (EARLY, "511"))
    )
    assert at == beyond > below
    later = "n/s (2025-06-04)"
    assert value(row, sdk=later, input_len="512") == value(row, sdk=later, input_len="511")


def test_what_no_document_says_has_two_values():
    row = DECODER | {
        "task": "static-batch(optimum-neuron)",
        "sdk": EARLY,
        "batch_size": "4",
        "metric": "ttft",
    }
    found = Predictor(cases=cases()).predict(row)
    assert (found.profile, found.other == value(row, profile="optimum-tnx-spilled")) == ("optimum-tnx", True)
    assert found.values == (found.value, found.other)
    assert found.other > found.value
    token = Predictor(cases=cases()).predict(row | {"metric": "tpot"})
    assert token.other is None, "the kernel of prompts changes no other step"
    unknown = Predictor(cases=cases()).predict(SERVING | {"task": "serving"})
    assert (unknown.profile, unknown.other is None) == ("stack-unknown", False)


def test_a_separate_softmax_is_one_of_several_prompts():
    row = DECODER | {
        "task": "text-generation",
        "sdk": "2.18.0",
        "metric": "ttft",
        "input_len": "4096",
        "seq_len": "8192",
    }
    one, spilled, fused = (
        value(row, batch_size="1", profile=name)
        for name in ("transformers-neuronx-hsb", "transformers-neuronx-hsb-spilled", "transformers-neuronx")
    )
    assert one == pytest.approx(fused, rel=0.02)
    assert spilled > 1.3 * one
    several = [
        value(row, batch_size="8", profile=f"transformers-neuronx-hsb{end}") for end in ("", "-spilled")
    ]
    assert several[0] == several[1]


def test_tails_follow_their_medians():
    p50, p90, p99 = (value(DECODER, metric="ttft", percentile=name) for name in ("p50", "p90", "p99"))
    assert p99 - p50 == pytest.approx(5.0)
    assert p90 - p50 == pytest.approx(5.0 * log(5) / log(50))
    step = [value(DECODER, metric="tpot", percentile=name) for name in ("p50", "p99")]
    assert step[1] == pytest.approx(1.03 * step[0], rel=0.05)


def test_an_image_has_as_many_tokens_as_its_model_says():
    sizes = {value(ENCODER, model="vit-base", task="vision", input_len=n) for n in ("224x224", "224", "")}
    assert len(sizes) == 1


IMAGE = ENCODER | {
    "model": "resnet50",
    "task": "cnn",
    "parallelism": "DP1",
    "batch_size": "1",
    "input_len": "224x224",
    "seq_len": "0",
}


def test_convolutional_networks():
    """An image alone, and batches of which two are in flight on each core: the host copies meanwhile."""
    alone, batch = value(IMAGE), value(IMAGE, batch_size="8", parallelism="DP2")
    assert 0.4 < alone < 1.2
    rate = value(IMAGE, metric="throughput", unit="inferences/s", batch_size="8", parallelism="DP2")
    assert rate == pytest.approx(2 * 2 * 8 / (batch / 1e3))
    assert value(IMAGE, task="encoder") == value(IMAGE, task="vision") == alone
    for name in ("resnet18", "vgg11", "unet", "yolov4"):
        assert value(IMAGE, model=name) > 0


def test_images_have_the_size_that_the_row_says():
    assert value(IMAGE) == value(IMAGE, input_len="224") == value(IMAGE, input_len="")
    assert value(IMAGE, input_len="256x256") > value(IMAGE)
    assert value(IMAGE, model="vit-base", input_len="384x384") > value(IMAGE, model="vit-base")
    assert "not square" in reason(IMAGE, input_len="224x448")
    assert "image_size" in reason(IMAGE, model="unet", input_len="100x100")


TRANSLATOR = DECODER | {
    "instance": "inf2.24xlarge",
    "model": "flan-t5-xl",
    "task": "encoder-decoder(in+out)",
    "dtype": "fp32+matmult-bf16",
    "batch_size": "1",
    "input_len": "128",
    "output_len": "84",
    "metric": "per_token_latency",
    "sdk": "2.18.0",
    "seq_len": "128",
}


def test_encoder_decoders_read_once_and_search_with_beams():
    """Each step costs the same, since caches have the length that was compiled; the encoder runs once."""
    total = value(TRANSLATOR, metric="request_latency")
    assert value(TRANSLATOR) == pytest.approx(total / 212)
    step = value(TRANSLATOR, metric="tpot", percentile="p50")
    assert 1.04 * step == pytest.approx(value(TRANSLATOR, metric="tpot", percentile="p99"))
    first = value(TRANSLATOR, metric="ttft")
    assert total == pytest.approx(first + 83 * step)
    assert value(TRANSLATOR, metric="ttft", input_len="64", seq_len="128") == first
    assert value(TRANSLATOR, metric="tpot", input_len="200", seq_len="256") > step
    assert step > 2 * value(TRANSLATOR, metric="tpot", profile="async")


def test_a_pipeline_may_have_more_cores_than_layers():
    """Published for 16 cores of inf1: 5.9 ms, where a core alone takes 7.9."""
    inf1 = {"instance": "inf1.6xlarge", "dtype": "fp32", "batch_size": "1"}
    long = value(ENCODER, **inf1, parallelism="PP16")
    assert 3 < long < 7.9
    rate = value(ENCODER, **inf1, parallelism="PP16", metric="throughput", unit="inferences/s")
    assert rate > 2 / (long / 1e3)


def test_a_decoder_measured_as_an_encoder_has_no_head():
    with_head = value(ENCODER, model="gpt2", task="text-generation", output_len="1", metric="ttft")
    assert value(ENCODER, model="gpt2") < with_head


@pytest.mark.parametrize(
    ("load", "same_as"),
    [
        ({"arrival": ""}, {"arrival": "poisson"}),
        ({"arrival": "poisson", "users": "64"}, {"arrival": "constant", "users": "64"}),
        ({"arrival": "", "users": "64"}, {"arrival": "constant", "users": "64"}),
        ({"task": "serving-tgi", "users": "8", "rate": ""}, {"arrival": "burst", "users": "8"} | TGI),
        ({"arrival": "closed", "users": "8"}, {"arrival": "concurrent", "users": "8", "rate": ""}),
        ({"arrival": "", "users": "8", "rate": ""}, {"arrival": "concurrent", "users": "8"}),
        ({"arrival": "sequential", "users": "8"}, {"arrival": "synchronous", "users": "8", "rate": ""}),
    ],
)
def test_ways_to_say_a_load(load, same_as):
    assert value(SERVING, **load) == value(SERVING, **same_as)


def test_llmperf_counts_the_answers_of_a_small_vocabulary_as_they_are():
    row = SERVING | {"task": "serving-tgi", "users": "2", "rate": "", "arrival": ""}
    own = value(row, metric="output_throughput", unit="tokens/s")
    assert value(row, metric="request_latency", model="llama-2-7b") > value(row, metric="request_latency")
    served = value(SERVING, arrival="burst", users="2", **TGI, metric="output_throughput", unit="tokens/s")
    assert own == pytest.approx(served / 0.85)


def test_old_tables_say_neither_cores_nor_lengths():
    row = DECODER | {"task": "text-generation(in+out)", "sdk": "2.9.0", "input_len": "0", "output_len": "0"}
    row |= {"parallelism": "TP1", "batch_size": "1", "seq_len": "0", "metric": "per_token_latency"}
    found = Predictor(cases=cases()).predict(row | {"model": "opt-30b"})
    assert found.assumed
    assert "tensor 4 is assumed" in found.reason
    assert "2048 tokens are assumed" in found.reason
    said = value(row, model="opt-30b", parallelism="TP4", input_len="1", output_len="2047")
    assert found.value == said
    assert not Predictor(cases=cases()).predict(row | {"input_len": "9", "output_len": "9"}).assumed
    crowded = Predictor(cases=cases()).predict(row | {"model": "opt-30b", "batch_size": "256"})
    assert "tensor 4 is assumed" in crowded.reason, "no degree holds the keys and values: the weights decide"


def test_a_burst_and_a_constant_rate():
    burst = value(SERVING, arrival="burst", users="8")
    assert value(SERVING, arrival="synchronous") < burst
    assert value(SERVING, arrival="constant") != value(SERVING)


def test_under_load():
    alone = value(SERVING, arrival="synchronous")
    assert alone < value(SERVING) < value(SERVING, rate="2.5")
    crowd = value(SERVING, arrival="concurrent", users="32", metric="output_throughput", unit="tokens/s")
    assert crowd > value(SERVING, metric="output_throughput", unit="tokens/s")
    more = value(SERVING, parallelism="TP8xDP3", metric="itl", rate="2.5")
    assert more < value(SERVING, metric="itl", rate="2.5")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task": "guessing"}, "profile"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"model": "x" * 5000}, "too long"),
        ({"profile": "x" * 5000}, "too long"),
        ({"instance": "p5.48xlarge"}, "p5.48xlarge"),
        ({"parallelism": "TP48"}, "cores are needed"),
        ({"parallelism": "8"}, "parallelism"),
        ({"parallelism": "TP8xTP2"}, "parallelism"),
        ({"parallelism": "TP0"}, "parallelism"),
        ({"model": "llama-3.1-70b", "parallelism": "TP1"}, "do not fit"),
        ({"dtype": "fp7"}, "fp7"),
        ({"dtype": "bf16+x"}, "unknown part"),
        ({"metric": "joules"}, "joules"),
        ({"unit": "furlongs"}, "furlongs"),
        ({"unit": "tokens/s"}, "not measured in"),
        ({"percentile": "often"}, "often"),
        ({"batch_size": "-1"}, "batch_size"),
        ({"batch_size": "nan"}, "batch_size"),
        ({"input_len": "224x224"}, "image"),
        ({"input_len": "0", "output_len": "0"}, "missing"),
        ({"arrival": "sometimes"}, "sometimes"),
        ({"arrival": "poisson"}, "rate"),
        ({"arrival": "poisson", "rate": "1e9"}, "rate"),
        ({"arrival": "throughput"}, "users"),
        ({"arrival": "throughput", "users": "10000000"}, "users"),
    ],
)
def test_reasons(changes, why):
    assert why in reason(DECODER, **changes)


def test_caveats():
    assert (
        Predictor(cases=cases()).predict(DECODER | {"percentile": "p99"}).reason.startswith("not validated")
    )
    trn2 = DECODER | {"instance": "trn2.48xlarge", "parallelism": "TP4"}
    assert "trn2" in Predictor(cases=cases()).predict(trn2).reason


GARBAGE = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "0", "-3", "1e400", "nan", "inf", "TP1x", "PP3", "DP999", "224x224", "fp16+w:int8"]),
    st.integers(-5, 1 << 40).map(str),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*DECODER, "profile", "users"]), GARBAGE, max_size=4))
def test_no_row_breaks_the_predictor(changes):
    found = Predictor(cases=cases()).predict(DECODER | changes)
    assert (found.value is None) <= bool(found.reason)
    assert found.value is None or 0 < found.value < float("inf")


def test_an_empty_row_has_a_reason():
    assert Predictor(cases=cases()).predict({}).reason


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_more_work_takes_longer(name):
    row = DECODER | {"profile": name}
    batches = [value(row, batch_size=str(n)) for n in (1, 2, 8, 32)]
    contexts = [value(row, input_len=str(n)) for n in (128, 1000, 3000)]
    assert batches == sorted(batches)
    assert contexts == sorted(contexts)


def test_one_percent_more_context_is_at_most_three_percent_more_time():
    row = DECODER | {"profile": "async"}
    short, long = (value(row, input_len=str(n)) for n in (2000, 2020))
    assert short <= long <= 1.03 * short


def test_a_file_can_be_read_back(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(rows.as_csv(list(DECODER), [DECODER, DECODER | {"model": 'a,"b'}]), newline="")
    table = rows.read(path)
    assert table.columns == tuple(DECODER)
    assert table.rows == (DECODER, DECODER | {"model": 'a,"b'})
    with path.open(newline="") as file:
        assert len(list(csv.reader(file))) == 3


MIXTURE = DECODER | {
    "instance": "trn2.48xlarge",
    "model": "qwen3-30b",
    "profile": "vllm-neuron",
    "batch_size": "16",
}


def test_divided_experts_are_predicted_as_they_are_timed() -> None:
    """Prompts gain where experts are narrow: docs/decisions/2026-11-26-expert-parallel.md."""
    row = MIXTURE | {"metric": "ttft", "dtype": "bf16"}
    whole, divided = value(row), value(row, parallelism="TP8xEP8")
    assert divided < 0.7 * whole
    assert value(row, parallelism="TP8xEP1") == whole


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parallelism": "TP8xEP12"}, "--expert 12: the cores of a stage are in groups of --tensor 8"),
        ({"model": "llama-3.1-8b", "parallelism": "TP8xEP8"}, "has no experts"),
        ({"parallelism": "TP8xEP8xDP3", "instance": "trn1.2xlarge"}, "24 cores are needed"),
    ],
)
def test_experts_that_cannot_be_divided_so_are_a_reason(changes: dict[str, str], told: str) -> None:
    assert told in reason(MIXTURE, **changes)
