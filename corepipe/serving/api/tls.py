"""TLS for the server's own ports."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from corepipe.errors import UserError


def tls_context(certfile: Path | None, keyfile: Path | None) -> ssl.SSLContext | None:
    """A server's context, TLS 1.2 and above; None without a certificate.

    The key may be in the certificate's file.  Raises UserError where the two cannot be read or do not match,
    and for a key that everyone may read.
    """
    if certfile is None:
        if keyfile is not None:
            raise UserError("--ssl-keyfile is the key of a certificate: give --ssl-certfile", "ssl_keyfile")
        return None
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
        raise UserError(f"{spelled}: no certificate and key in PEM that match ({reason})", flag) from error
    except OSError as error:
        missing = error.filename or certfile
        flag = "ssl_keyfile" if keyfile is not None and str(missing) == str(keyfile) else "ssl_certfile"
        message = f"--{flag.replace('_', '-')} {missing}: {error.strerror}"
        raise UserError(message, flag) from error
    return context


def _no_password() -> str:
    """Instead of a prompt on the terminal."""
    return ""
