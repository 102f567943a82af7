from __future__ import annotations

from corepipe.serving.api.http.limits import without_offer


def test_all_but_the_offer_is_kept() -> None:
    headers = [
        (b"host", b"localhost"),
        (b"connection", b"close, Upgrade,HTTP2-Settings"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"AAEAAEAA"),
        (b"content-length", b"2"),
    ]
    assert without_offer(b"/v1/x?y", "1.1", headers) == (
        b"POST /v1/x?y HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
    )
