"""Authentication of the two ends of a link: each process makes a new key, and certificates are known before.

Each side has a key that never leaves its process, and a certificate of its own making.  The certificates go
through a control plane that both trust; then each side trusts the other's certificate and nothing else.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from corepipe.errors import UserError

VALID_DAYS = 3650
"""Longer than a process lives: the control plane decides which certificate is trusted, not a date."""

PEER = "fleet.corepipe"
"""The name in every certificate: a peer is known by its certificate as a whole, not by a name."""

SKEW_DAYS = 1
"""The days by which the clocks of machines may differ."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, both in PEM."""

    certificate: str
    key: str

    @classmethod
    def make(cls, name: str) -> Identity:
        """Makes a key on P-256.  Raises UserError where the package that makes certificates is missing."""
        try:
            from cryptography import x509  # noqa: PLC0415 -- of the extra
            from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
            from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        except ImportError as error:
            raise UserError("a fleet needs corepipe[ray]: pip install 'corepipe[ray]'") from error
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(PEER)]), critical=False)
            .not_valid_before(now - timedelta(days=SKEW_DAYS))
            .not_valid_after(now + timedelta(days=VALID_DAYS))
            .sign(key, hashes.SHA256())
        )
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())

    def server(self, trusted: str) -> ssl.SSLContext:
        """Makes the context of the listening side, for the one peer whose certificate is `trusted`."""
        return self._context(ssl.PROTOCOL_TLS_SERVER, trusted)

    def client(self, trusted: str) -> ssl.SSLContext:
        """Makes the context of the connecting side, to the one peer with the certificate `trusted`."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, trusted)

    def _context(self, protocol: ssl._SSLMethod, trusted: str) -> ssl.SSLContext:
        """Makes a context with TLS 1.3: recorded bytes cannot be replayed, here or in another connection."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=trusted)
        with (
            tempfile.TemporaryDirectory() as folder
        ):  # ssl reads keys from files alone; only we may read these
            file = Path(folder) / "identity.pem"
            file.touch(mode=0o600)
            file.write_text(self.key + self.certificate)
            context.load_cert_chain(file)
        return context
