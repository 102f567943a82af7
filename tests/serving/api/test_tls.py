from __future__ import annotations

import ssl

import httpx
import pytest
import trustme

from corepipe import probe
from corepipe.errors import UserError
from corepipe.serving.api import app
from corepipe.serving.api.http.tls import tls_certificate
from tests.servers import until
from tests.serving.http_support import FakeEngine, running
from tests.wires import connected, everything


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def pem(authority, tmp_path_factory):
    """Makes a certificate and a key in separate files, and both in one."""
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    chain, key = issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()
    for name, content in {"cert": chain, "key": key, "both": key + chain}.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder


@pytest.mark.parametrize("files", [("cert", "key"), ("both", None)])
def test_https(authority, pem, files):
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    certfile, keyfile = (None if name is None else pem / name for name in files)
    with running(FakeEngine(), ssl_certfile=certfile, ssl_keyfile=keyfile) as url:
        secure = url.replace("http://", "https://")
        with httpx.Client(verify=trusting) as http:
            body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
            assert http.post(secure + "/v1/completions", json=body).status_code == 200
            assert until(lambda: probe.failure(secure + "/health") is None)
            refused = http.get(secure + "/health", headers={"x": "y" * 20_000})
            assert refused.status_code == 431
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(url + "/health")


def test_without_a_handshake_it_hangs_up(pem, monkeypatch):
    monkeypatch.setattr(app, "HEAD_SECONDS", 0.2)
    with running(FakeEngine(), ssl_certfile=pem / "both") as url, connected(url) as silent:
        assert everything(silent) == b""


@pytest.mark.parametrize(
    ("cert", "key", "param"),
    [
        (None, "key", "ssl_keyfile"),
        ("missing", "key", "ssl_certfile"),
        ("cert", "missing", "ssl_keyfile"),
        ("cert", "cert", "ssl_keyfile"),
        ("cert", None, "ssl_certfile"),
        ("public", None, "ssl_certfile"),
    ],
)
def test_what_does_not_go_together(pem, cert, key, param):
    (pem / "public").write_bytes((pem / "both").read_bytes())
    (pem / "public").chmod(0o644)
    with pytest.raises(UserError, match="--" + param.replace("_", "-")) as caught:
        tls_certificate(None if cert is None else pem / cert, None if key is None else pem / key)
    assert caught.value.param == param


def test_no_certificate_no_tls():
    assert tls_certificate(None, None) is None
