"""Who may call a predictor, the tagger or the batch service: those that know the shared secret.

Unix sockets and loopback addresses need no secret, because callers are on the same host. If one is
configured, it is demanded there, too.
"""

import hmac
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from foretell.config.settings import TrafficSettings

METADATA_KEY = "foretell-secret"
"""Key of the gRPC metadata that carries the shared secret."""
SECRET_HEADER = "x-foretell-secret"  # noqa: S105 - a name
"""HTTP header that carries the shared secret between schedulers and the batch service."""
TENANT_HEADER = "x-foretell-tenant"
"""HTTP header of such a request that names the tenant it is made for, quoted as in URLs."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What protects calls between services. PEM bytes; empty: none."""

    secret: str = ""
    certificate: bytes = b""
    key: bytes = b""
    authority: bytes = b""
    files: tuple[str, str, str] = ("", "", "")
    """Where certificate, key and authority were read from."""

    @classmethod
    def of(cls, settings: TrafficSettings) -> "Traffic":
        """Read the settings' files; SystemExit for an unreadable one, or half of a TLS pair."""
        if bool(settings.tls_certificate) != bool(settings.tls_key):
            raise SystemExit("tls_certificate and tls_key must be given together")
        files = settings.tls_certificate, settings.tls_key, settings.tls_authority
        certificate, key, authority = map(_read, files)
        return cls(
            settings.secret.get_secret_value(),
            certificate,
            key,
            authority,
            files,
        )

    def knows(self, secret: bytes) -> bool:
        """Whether `secret` is the shared one; compared in constant time."""
        return hmac.compare_digest(secret, self.secret.encode())

    def headers(self, tenant: str) -> dict[str, str]:
        """Headers of an HTTP request to a peer on behalf of a tenant."""
        secret = {SECRET_HEADER: self.secret} if self.secret else {}
        return {TENANT_HEADER: quote(tenant, safe=""), **secret}

    def tenant(self, headers: Mapping[str, str]) -> str | None:
        """Return the tenant on whose behalf a request with these headers is made; None if they
        lack the secret, which is compared in constant time, or the tenant."""
        given = headers.get(SECRET_HEADER, "").encode("latin-1", "replace")
        name = headers.get(TENANT_HEADER)
        if name is None or not self.secret or not self.knows(given):
            return None
        return unquote(name)

    def server_tls(self) -> ssl.SSLContext | None:
        """The TLS context of a server that does not speak gRPC; None: no TLS."""
        certificate, key, authority = self.files
        if not certificate:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        if authority:
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_tls(self) -> ssl.SSLContext | None:
        """The TLS context of a client of such a server; None: no TLS."""
        certificate, key, authority = self.files
        if not authority:
            return None
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, key)
        return context


OPEN = Traffic()
"""No secret and no TLS."""


def require_proof(address: str, traffic: Traffic) -> None:
    """Raise SystemExit if other hosts could reach `address` without authentication."""
    mutual = bool(traffic.certificate and traffic.authority)
    if not (address.startswith("unix:") or is_loopback(address) or traffic.secret or mutual):
        raise SystemExit(
            f"other hosts can reach {address}: give a shared secret with secret_file, or "
            "listen on a unix socket or 127.0.0.1"
        )


def is_loopback(address: str) -> bool:
    """Whether only this host can reach `HOST:PORT`."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise SystemExit(f"cannot read {path}: {error.strerror}") from error
