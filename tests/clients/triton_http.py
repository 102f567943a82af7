"""tritonclient over HTTP, unmodified: health, metadata, and tensors in JSON and in binary."""

from __future__ import annotations

from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_async
from tritonclient.utils import InferenceServerException

from tests.clients.rows import MODEL, URL, Rows, raises

ADDRESS = URL.removeprefix("http://").removesuffix("/v1")
TEXTS = ["a cat sat on the mat", "shares fell on Monday"]
IDS = np.array([[101, 1037, 4937, 102], [101, 6661, 102, 0]], np.int64)
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int64)

row = Rows()
client = triton.InferenceServerClient(ADDRESS, concurrency=4, network_timeout=60)


def tensor(name: str, data: Any, datatype: str, *, binary: bool) -> Any:
    made = triton.InferInput(name, list(data.shape), datatype)
    made.set_data_from_numpy(data, binary_data=binary)
    return made


def texts(*, binary: bool = True) -> list[Any]:
    return [tensor("text", np.array(TEXTS, object), "BYTES", binary=binary)]


def ids(*, binary: bool = True) -> list[Any]:
    sent = {"input_ids": IDS, "attention_mask": MASK}
    return [tensor(name, data, "INT64", binary=binary) for name, data in sent.items()]


def vectors(inputs: list[Any], **more: Any) -> Any:
    return client.infer(MODEL, inputs, **more).as_numpy("embedding")


@row
def health() -> None:
    """is_server_live, is_server_ready, is_model_ready"""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert not client.is_model_ready("another")


@row
def server_metadata() -> None:
    """get_server_metadata: its name, and that tensors may be binary"""
    told = client.get_server_metadata()
    assert told["name"] == "corepipe"
    assert "binary_tensor_data" in told["extensions"]


@row
def model_metadata() -> None:
    """get_model_metadata: what an inference takes and gives"""
    told = client.get_model_metadata(MODEL)
    takes = {one["name"]: one["datatype"] for one in told["inputs"]}
    (gives,) = told["outputs"]
    assert (takes["text"], takes["input_ids"]) == ("BYTES", "INT64")
    found = vectors(texts())
    assert (gives["name"], gives["shape"][1], found.dtype) == ("embedding", found.shape[1], np.float32)


@row
def infer_texts() -> None:
    """infer: texts in binary, and in JSON: the same vectors"""
    found = vectors(texts())
    assert found.shape[0] == 2
    # as bf16 has it
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)
    assert np.array_equal(found, vectors(texts(binary=False)))


@row
def infer_ids() -> None:
    """infer: token ids with their mask, in binary, and in JSON"""
    found = vectors(ids())
    assert np.array_equal(found, vectors(ids(binary=False)))
    assert not np.allclose(found[0], found[1])


@row
def outputs() -> None:
    """InferRequestedOutput in binary, and in JSON: the same bits"""
    wanted = [triton.InferRequestedOutput("embedding", binary_data=binary) for binary in (True, False)]
    binary, text = (vectors(texts(), outputs=[one]) for one in wanted)
    assert np.array_equal(binary, text)


@row
def request_id() -> None:
    """request_id comes back, beside the model's name and version"""
    told = client.infer(MODEL, texts(), request_id="mine").get_response()
    assert (told["id"], told["model_name"], told["model_version"]) == ("mine", MODEL, "1")


@row
def parameters() -> None:
    """parameters: a long text is cut where that is asked for"""
    long = np.array(["a cat " * 1000], object)
    sent = [tensor("text", long, "BYTES", binary=True)]
    with raises(InferenceServerException) as caught:
        vectors(sent)
    assert caught.error.status() == "400"
    assert vectors(sent, parameters={"truncate_prompt_tokens": -1}).shape[0] == 1


@row
def many() -> None:
    """async_infer: 16 requests at once, each with the vectors that it has alone"""
    alone = vectors(texts())
    waiting = [client.async_infer(MODEL, texts(binary=at % 2 == 0)) for at in range(16)]
    assert all(np.array_equal(one.get_result().as_numpy("embedding"), alone) for one in waiting)


@row
async def asynchronous() -> None:
    """the client for asyncio"""
    alone = vectors(texts())
    async with triton_async.InferenceServerClient(ADDRESS) as one:
        assert await one.is_server_ready()
        found = await one.infer(MODEL, texts())
    assert np.array_equal(found.as_numpy("embedding"), alone)


@row
def version() -> None:
    """model_version 1: readiness, metadata and inference; another is not there"""
    assert client.is_model_ready(MODEL, "1")
    assert client.get_model_metadata(MODEL, "1") == client.get_model_metadata(MODEL)
    assert np.array_equal(vectors(texts(), model_version="1"), vectors(texts()))
    assert not client.is_model_ready(MODEL, "2")
    with raises(InferenceServerException) as caught:
        vectors(texts(), model_version="2")
    assert caught.error.status() == "404"


@row
def compressed_answers() -> None:
    """response_compression_algorithm gzip: taken as it is offered, an answer need not be compressed"""
    assert np.array_equal(vectors(texts(), response_compression_algorithm="gzip"), vectors(texts()))


@row
def unknown_model() -> None:
    """a model that is not there: an error of status 404 that says so"""
    with raises(InferenceServerException) as caught:
        client.infer("another", texts())
    assert caught.error.status() == "404"
    assert "another" in caught.error.message()


@row
def repository() -> None:
    """the index of the repository; models are loaded and unloaded on another port"""
    assert MODEL in [one["name"] for one in client.get_model_repository_index()]
    for ask in (client.load_model, client.unload_model):
        with raises(InferenceServerException) as caught:
            ask(MODEL)
        assert "admin port" in caught.error.message()


@row
def extensions() -> None:
    """configuration, statistics, shared memory, ...: errors of status 404 that name them"""
    for ask in (
        lambda: client.get_model_config(MODEL),
        client.get_inference_statistics,
        lambda: client.get_inference_statistics(MODEL, "1"),
        client.get_system_shared_memory_status,
        client.unregister_cuda_shared_memory,
        lambda: client.get_trace_settings(MODEL),
        client.get_log_settings,
    ):
        with raises(InferenceServerException) as caught:
            ask()
        assert caught.error.status() == "404"
        assert "extension is not supported" in caught.error.message()


@row
def compressed_bodies() -> None:
    """request_compression_algorithm gzip: an error of status 415 that says so"""
    with raises(InferenceServerException) as caught:
        client.infer(MODEL, texts(), request_compression_algorithm="gzip")
    assert caught.error.status() == "415"
    assert "Compressed" in caught.error.message()


@row
def unknown_tensor() -> None:
    """a tensor that the model does not take: an error of status 400 that names those it takes"""
    with raises(InferenceServerException) as caught:
        client.infer(MODEL, [tensor("prompt", np.array(["a"], object), "BYTES", binary=True)])
    assert caught.error.status() == "400"
    assert "text (BYTES)" in caught.error.message()


if __name__ == "__main__":
    row.run()
