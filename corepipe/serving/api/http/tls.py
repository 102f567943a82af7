"""TLS for the server's own ports."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

from corepipe.errors import UserError


class Certificate:
    """The certificate of a server's ports; its `context` presents the version that was read last."""

    def __init__(self, certfile: Path, keyfile: Path | None) -> None:
        """Raises UserError as `tls_certificate`."""
        self._files = certfile, keyfile
        self._latest = self.context = _read(certfile, keyfile)
        self.context.sni_callback = self._present

    async def reload(self) -> str:
        """Reads the files again, for new handshakes; returns the certificate's path.  Raises UserError."""
        self._latest = await asyncio.to_thread(_read, *self._files)
        return str(self._files[0])

    def _present(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Selects the latest certificate; called in each handshake, with or without a server name."""
        connection.context = self._latest


def tls_certificate(certfile: Path | None, keyfile: Path | None) -> Certificate | None:
    """Reads the certificate; returns None if none is configured.

    The key may be in the certificate's file.  Raises UserError if the two cannot be read or do not match, and
    for a key that everyone may read.
    """
    if certfile is None:
        if keyfile is not None:
            raise UserError("--ssl-keyfile is the key of a certificate: give --ssl-certfile", "ssl_keyfile")
        return None
    return Certificate(certfile, keyfile)


def _read(certfile: Path, keyfile: Path | None) -> ssl.SSLContext:
    """Makes a server's context, for TLS 1.2 and above."""
    key, flag = (certfile, "ssl_certfile") if keyfile is None else (keyfile, "ssl_keyfile")
    spelled = f"--{flag.replace('_', '-')} {key}"
    try:
        if key.stat().st_mode & stat.S_IROTH:
            raise UserError(f"{spelled}: everyone may read this key; chmod 0640 {key}", flag)
        certfile.open("rb").close()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certfile, keyfile, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise UserError(f"{spelled}: not a certificate and key in PEM that match ({reason})", flag) from error
    except OSError as error:
        missing = error.filename or certfile
        flag = "ssl_keyfile" if keyfile is not None and str(missing) == str(keyfile) else "ssl_certfile"
        message = f"--{flag.replace('_', '-')} {missing}: {error.strerror}"
        raise UserError(message, flag) from error
    return context


def _no_password() -> str:
    """Returns an empty password, so that OpenSSL does not prompt on the terminal."""
    return ""
