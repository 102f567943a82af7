"""Hostile images against a real server: each is refused with a reason, with nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from PIL import Image

from tests.attacks import Watch
from tests.pictures import data_uri, encoded, hostile, picture, write_vit
from tests.servers import Served, served
from tests.wires import connected, post

GOOD = data_uri(encoded(picture()))
GOLDEN = ("/classify", {"model": "tiny", "input": GOOD})
HOSTILE = hostile()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_vit(tmp_path_factory.mktemp("vit"))
    with served(folder, "--served-model-name", "tiny", "--threads", 1) as running:
        yield running


def test_each_is_refused_with_a_reason(watch: Watch) -> None:
    for name, data in HOSTILE.items():
        for kind in ("png", "gif"):
            answer = watch.http.post("/classify", json={"model": "tiny", "input": data_uri(data, kind)})
            assert answer.status_code == 400, (name, answer.text[:200])
            assert answer.json()["error"]["message"].startswith("input: the image is refused: "), name
            assert len(answer.content) < 1000


def test_one_in_a_request_spoils_it(watch: Watch) -> None:
    body = {"model": "tiny", "input": [GOOD] * 5 + [data_uri(HOSTILE["bomb"])] + [GOOD] * 5}
    answer = watch.http.post("/classify", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[5]"


def test_many_large_images_of_few_bytes(watch: Watch) -> None:
    """Sixty-four images, of 700 bytes each as WebP, would take 20 s of processor time to decode."""
    flat = data_uri(encoded(Image.new("RGB", (4096, 4096))))
    answer = watch.http.post("/classify", json={"model": "tiny", "input": [flat] * 40})
    assert answer.status_code == 400
    assert "the images have more than 67108864 pixels in all" in answer.text


def test_more_than_a_body_may_have(watch: Watch) -> None:
    answer = watch.http.post("/classify", json={"model": "tiny", "input": data_uri(b"\0" * (4 << 20))})
    assert answer.status_code == 413


def test_clients_that_do_not_wait(watch: Watch) -> None:
    body = json.dumps({"model": "tiny", "input": [GOOD] * 64}).encode()
    for _ in range(4):
        with connected(watch.server.url) as left:
            left.sendall(post("/classify", body))
