"""Images classified by a real server and the library, as the reference does with transformers' pixels."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from corepipe.answers.values import activated
from corepipe.errors import UserError
from corepipe.library.llm import LLM
from corepipe.models.registry import load
from tests.parity.encode import Encoder, Picture
from tests.pictures import LABELS, SIZE, data_uri, readable, write_vit
from tests.servers import Served, run, served

ROWS = (SIZE // 8) ** 2 + 1
NEAR = 1e-5
"""The bound between kernels and the reference executor in fp32."""
NAMED = {name: data for name, data in readable().items() if name in ("png", "turned", "cmyk", "gif", "alpha")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(folder, "--served-model-name", "tiny", "--dtype", "fp32", "--threads", 1) as running:
        yield running


def pixels_of(data: bytes) -> np.ndarray:
    """Returns transformers' pixels [3, height, width]."""
    theirs = ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}, resample=3)
    return theirs(load_image(Image.open(io.BytesIO(data))), return_tensors="np")["pixel_values"][0]


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, list[float]]:
    """Returns the probabilities of each image, by its name."""
    model = load(folder)
    task = model.task()
    twin = Encoder(model, "fp32", task, "reference")
    rows = twin.values([Picture(pixels_of(data), ROWS) for data in NAMED.values()])
    probs = activated(np.concatenate(rows), task.activation)
    return dict(zip(NAMED, probs.tolist(), strict=True))


def classify(server: Served, given: object, **more: object) -> httpx.Response:
    return server.post("/classify", json={"model": "tiny", "input": given, **more})


def told(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def refused(answer: httpx.Response, field: str) -> str:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field, error
    return str(error["message"])


def test_classes_are_what_the_twin_makes_of_transformers_pixels(server: Served, wanted: dict) -> None:
    answer = classify(server, [data_uri(data) for data in NAMED.values()], device_metrics=True)
    for one, name in zip(told(answer), NAMED, strict=True):
        assert np.allclose(one["probs"], wanted[name], rtol=0, atol=NEAR), name
        assert one["label"] == LABELS[int(np.argmax(one["probs"]))]
        assert one["num_classes"] == len(LABELS)
    said = answer.json()
    assert said["usage"]["prompt_tokens"] == ROWS * len(NAMED)
    assert said["corepipe"]["emulated"] is True


def test_an_image_has_the_same_bits_alone_among_others_and_as_a_tensor(server: Served) -> None:
    uris = [data_uri(data) for data in NAMED.values()]
    together = [one["probs"] for one in told(classify(server, uris))]
    alone = [told(classify(server, uri))[0]["probs"] for uri in uris]
    pixels = np.stack([pixels_of(data) for data in NAMED.values()]).astype("<f4")
    one = {"name": "pixel_values", "datatype": "FP32", "shape": list(pixels.shape)}
    plain = server.post("/v2/models/tiny/infer", json={"inputs": [{**one, "data": pixels.ravel().tolist()}]})
    head = json.dumps({"inputs": [{**one, "parameters": {"binary_data_size": pixels.nbytes}}]}).encode()
    sent = {"inference-header-content-length": str(len(head))}
    binary = server.post("/v2/models/tiny/infer", content=head + pixels.tobytes(), headers=sent)
    for answer in (plain, binary):
        assert answer.status_code == 200, answer.text
        probs, labels = answer.json()["outputs"]
        assert np.array_equal(np.float32(probs["data"]).reshape(probs["shape"]), np.float32(together))
        assert set(labels["data"]) <= set(LABELS)
    assert alone == together


def test_scores_without_their_activation(server: Served) -> None:
    uri = data_uri(NAMED["png"])
    (raw,) = told(classify(server, uri, use_activation=False))
    (probs,) = told(classify(server, uri))
    assert np.allclose(np.exp(raw["probs"]) / np.exp(raw["probs"]).sum(), probs["probs"], atol=NEAR)
    (pooled,) = told(server.post("/pooling", json={"model": "tiny", "input": uri}))
    assert pooled["data"] == probs["probs"]


PNG = data_uri(NAMED["png"])
BASE64 = PNG.partition(",")[2]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("a cat", "this model reads images: send a data URI"),
        ("https://example.com/cat.png", "nothing is fetched here"),
        ("file:///etc/passwd", "nothing is fetched here"),
        ("/etc/passwd", "send a data URI"),
        (BASE64, "send a data URI"),
        (f"data:image/png,{BASE64}", "must begin with data:image/ and be in base64"),
        (f"data:text/html;base64,{BASE64}", "must begin with data:image/ and be in base64"),
        (PNG[:-3], "no valid base64"),
        (f"{PNG[:90]}\n{PNG[90:]}", "no valid base64"),
        ("data:image/png;base64,ä", "no valid base64"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "not a PNG, JPEG, WebP or GIF image"),
        ("data:image/png;base64,", "not a PNG, JPEG, WebP or GIF image"),
        ([5, 6], "send data URIs"),
    ],
)
def test_what_is_no_image(server: Served, given: object, why: str) -> None:
    assert why in refused(classify(server, given), "input")


def test_the_entry_at_fault_is_named(server: Served) -> None:
    assert "input[1]: nothing is fetched" in refused(classify(server, [PNG, "http://a/"]), "input[1]")
    assert "at most 64" in refused(classify(server, [PNG] * 65), "input")
    assert "is for texts" in refused(
        classify(server, PNG, truncate_prompt_tokens=9), "truncate_prompt_tokens"
    )


def test_what_reads_text_is_refused(server: Served) -> None:
    bodies = {
        "/v1/embeddings": {"input": "a"},
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "/score": {"text_1": "a", "text_2": "b"},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [0]},
    }
    for path, body in bodies.items():
        answer = server.post(path, json={"model": "tiny", **body})
        assert answer.status_code == 400, (path, answer.text)
        assert answer.json()["error"]["code"] == "task_not_served", path


@pytest.mark.parametrize(
    ("shape", "data", "why"),
    [
        ([1, 3, SIZE, SIZE - 1], None, f"must have a shape of [images, 3, {SIZE}, {SIZE}]"),
        ([0, 3, SIZE, SIZE], [], "must have a shape of"),
        ([3 * SIZE * SIZE], None, "must have a shape of"),
        ([1, 3, SIZE, SIZE], [1e39] * (3 * SIZE * SIZE), "has infinity, or NaN"),
        ([1, 3, SIZE, SIZE], [10**400] * (3 * SIZE * SIZE), ""),
    ],
)
def test_tensors_that_are_no_images(server: Served, shape: list[int], data: list | None, why: str) -> None:
    values = [0.5] * int(np.prod(shape)) if data is None else data
    one = {"name": "pixel_values", "datatype": "FP32", "shape": shape, "data": values}
    answer = server.post("/v2/models/tiny/infer", json={"inputs": [one]})
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["error"]


def test_the_model_says_what_it_takes(server: Served) -> None:
    said = server.get("/v2/models/tiny").json()
    assert said["inputs"] == [{"name": "pixel_values", "datatype": "FP32", "shape": [-1, 3, SIZE, SIZE]}]
    placement = server.get("/v1/placement").json()
    assert placement["task"] == "classify"


def test_the_library_takes_paths_bytes_and_pillows_images(folder: Path, tmp_path: Path, wanted: dict) -> None:
    file = tmp_path / "turned.jpg"
    file.write_bytes(NAMED["turned"])
    given = [file, str(file), NAMED["turned"], Image.open(file)]
    with LLM(folder, format="fp32", threads=1) as llm:
        found = llm.classify(given)
        alone = llm.classify(given[3])
        with pytest.raises(UserError, match=r"images\[1\]: it is not a PNG"):
            llm.classify([file, b"hello"])
        with pytest.raises(UserError, match=r"no such file|cannot be read"):
            llm.classify(str(tmp_path / "none.png"))
        with pytest.raises(UserError, match="give a path, the bytes of a file, or a Pillow image"):
            llm.classify(5)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="does not generate"):
            llm.generate("a")
    assert all(np.array_equal(one.scores, alone[0].scores) for one in found)
    assert np.allclose(alone[0].scores, wanted["turned"], rtol=0, atol=NEAR)
    assert [one.prompt for one in found] == [str(file), str(file), None, None]
    assert set(alone[0].prompt_token_ids) == {0}
    assert alone[0].label in LABELS


def start(folder: Path, *flags: str) -> str:
    """Returns the error of `corepipe serve` for a model that it does not serve."""
    done = run("serve", folder, "--port", 0, *flags)
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_what_is_refused_at_the_start(tmp_path: Path) -> None:
    other = write_vit(tmp_path / "other", steps={"size": 32})
    assert "preprocessor_config.json: size makes images of 32x32" in start(other)
    good = write_vit(tmp_path / "good")
    assert "reads whole images" in start(good, "--max-model-len", "20")
    assert "it reads images" in start(good, "--task", "embed")
