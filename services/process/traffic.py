"""Who may call a predictor, the tagger or the batch service: those that know the shared secret.

Through unix sockets and the loopback nothing is demanded: whoever is there is on the host.
"""

import hmac
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import grpc

from foretell.config.settings import TrafficSettings
from services.process.folders import private_folder

METADATA_KEY = "foretell-secret"
"""Metadata of a call that carries the shared secret."""
SECRET_HEADER = "x-foretell-secret"  # noqa: S105 - a name
"""HTTP header that carries the shared secret between schedulers and the batch service."""
TENANT_HEADER = "x-foretell-tenant"
"""HTTP header of such a request that names, quoted as in URLs, on whose behalf it is made."""
_HEALTH = "/grpc.health.v1.Health/"  # says only that something serves

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]]


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
        """Traffic by the settings; SystemExit for an unreadable file or half of a pair."""
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
        """The tenant on whose behalf a request with these headers is made; None: it proves
        nothing. Compared in constant time."""
        given = headers.get(SECRET_HEADER, "").encode("latin-1", "replace")
        name = headers.get(TENANT_HEADER)
        if name is None or not self.secret or not self.knows(given):
            return None
        return unquote(name)

    def server_tls(self) -> ssl.SSLContext | None:
        """What a server that is no gRPC encrypts with; None: nothing."""
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
        """What a client of such a server encrypts with; None: nothing."""
        certificate, key, authority = self.files
        if not authority:
            return None
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, key)
        return context

    def channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        """A channel to a predictor or the tagger."""
        local = address.startswith("unix:")
        interceptors: Any = [_Present(self.secret)] if self.secret and not local else None
        if local or not self.authority:
            return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
        credentials = grpc.ssl_channel_credentials(
            self.authority, self.key or None, self.certificate or None
        )
        return grpc.aio.secure_channel(
            address, credentials, options=options, interceptors=interceptors
        )

    def server(self, **arguments: Any) -> grpc.aio.Server:
        """A gRPC server that demands the secret, where there is one."""
        return grpc.aio.server(interceptors=[_Demand(self)] if self.secret else None, **arguments)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Bind a `server` made here to `address`; returns the port.

        SystemExit if other hosts could call it there without any proof, or if it is taken.
        """
        require_proof(address, self)
        local = address.startswith("unix:")
        if local:
            private_folder(Path(address.removeprefix("unix:")).parent)
        try:
            if local or not self.certificate:
                return server.add_insecure_port(address)
            credentials = grpc.ssl_server_credentials(
                [(self.key, self.certificate)],
                self.authority or None,
                require_client_auth=bool(self.authority),
            )
            return server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise SystemExit(f"cannot listen on {address}: {error}") from error


OPEN = Traffic()
"""Nothing is demanded and nothing encrypted."""


def require_proof(address: str, traffic: Traffic) -> None:
    """SystemExit if other hosts could reach `address` without any proof."""
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


class _Present(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Adds the secret to every call."""

    def __init__(self, secret: str) -> None:
        self._pair = (METADATA_KEY, secret)

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Any],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        metadata = grpc.aio.Metadata(*(client_call_details.metadata or ()), self._pair)
        details = client_call_details._replace(metadata=metadata)  # type: ignore[attr-defined]
        return await continuation(details, request)


class _Demand(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without the secret."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler:
        """The method, or one that ends with UNAUTHENTICATED."""
        given: str | bytes = ""
        for key, value in handler_call_details.invocation_metadata or ():
            given = value if key == METADATA_KEY else given
        proof = given.encode() if isinstance(given, str) else given
        known = self._traffic.knows(proof)
        if known or handler_call_details.method.startswith(_HEALTH):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(_request: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the shared secret is missing or wrong")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise SystemExit(f"cannot read {path}: {error.strerror}") from error
