"""TLS towards clients."""

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from foretell.services.process.folders import file_version

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class Certificate:
    """The certificate that clients see. It is read again when its files change; while they are
    wrong, or do not belong together yet, the one before stays."""

    def __init__(
        self, certificate: str, key: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """PEM files of the certificate, with its chain, and of its private key. SystemExit if they
        cannot be used."""
        self._files = Path(certificate), Path(key)
        self._clock = clock
        self._looked_s = clock()
        try:
            self._versions = self._versions_now()
            self._latest = self._read()
        except OSError as error:  # which errors of TLS are, too
            text = f"https_certificate, https_key: cannot use {certificate} and {key}: {error}"
            raise SystemExit(text) from error
        self.context = self._latest
        """What listening sockets encrypt with, also after a change of the files."""
        self.context.sni_callback = self._greet

    def _greet(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        """Each handshake comes by here, whether or not it names a server."""
        self._look()
        connection.context = self._latest

    def _look(self) -> None:
        now_s = self._clock()
        if now_s < self._looked_s + _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            versions = self._versions_now()
            if versions != self._versions:
                self._latest = self._read()
                self._versions = versions
                logger.info("certificate read again from %s", self._files[0])
        except OSError as error:
            logger.warning("certificate not taken in, the old one stays: %s", error)

    def _versions_now(self) -> list[tuple[int, int]]:
        return [file_version(path) for path in self._files]

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate, key = self._files
        # The empty password keeps OpenSSL from asking a terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
        context.set_alpn_protocols(["http/1.1"])
        return context
