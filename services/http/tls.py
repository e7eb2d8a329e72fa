"""TLS towards clients."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path

from foretell.services.process.reread import Reread


class Certificate:
    """The certificate that clients see. It is read again when its files change; while they are
    wrong, or do not belong together yet, the one before stays."""

    def __init__(
        self, certificate: str, key: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """PEM files of the certificate, with its chain, and of its private key. SystemExit if they
        cannot be used."""
        self._files = Path(certificate), Path(key)
        try:
            self._reread = Reread("certificate", self._read, *self._files, clock=clock)
        except OSError as error:  # errors of TLS are OSErrors, too
            text = f"https_certificate, https_key: cannot use {certificate} and {key}: {error}"
            raise SystemExit(text) from error
        self.context = self._latest
        """The context of listening sockets, also after a change of the files."""
        self.context.sni_callback = self._greet

    def _greet(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        """Called in each handshake, whether or not it names a server."""
        self._reread.look()
        connection.context = self._latest

    def _read(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.options |= ssl.OP_NO_RENEGOTIATION  # it would cost the server more than the client
        certificate, key = self._files
        # The empty password keeps OpenSSL from asking a terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
        context.set_alpn_protocols(["http/1.1"])
        self._latest = context
