"""gRPC between services, protected as `traffic` says. Imported only where gRPC is used."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from foretell.services.process.folders import private_folder
from foretell.services.process.traffic import METADATA_KEY, Traffic, require_proof

_HEALTH = "/grpc.health.v1.Health/"  # needs no secret: it only says that something serves

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]]


def channel(
    traffic: Traffic, address: str, options: Sequence[tuple[str, Any]] = ()
) -> grpc.aio.Channel:
    """A channel to the tagger."""
    local = address.startswith("unix:")
    # On unix sockets, too: a server with a secret demands it from every client.
    interceptors: Any = [_Present(traffic.secret)] if traffic.secret else None
    if local or not traffic.authority:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    credentials = grpc.ssl_channel_credentials(
        traffic.authority, traffic.key or None, traffic.certificate or None
    )
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors)


def server(traffic: Traffic, **arguments: Any) -> grpc.aio.Server:
    """A server that demands the secret, where there is one."""
    return grpc.aio.server(interceptors=[_Demand(traffic)] if traffic.secret else None, **arguments)


def bind(traffic: Traffic, server: grpc.aio.Server, address: str) -> int:
    """Bind a `server` made here to `address`; returns the port.

    SystemExit if other hosts could call it without authentication, or if the address is taken.
    """
    require_proof(address, traffic)
    local = address.startswith("unix:")
    if local:
        private_folder(Path(address.removeprefix("unix:")).parent)
    try:
        if local or not traffic.certificate:
            return server.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials(
            [(traffic.key, traffic.certificate)],
            traffic.authority or None,
            require_client_auth=bool(traffic.authority),
        )
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise SystemExit(f"cannot listen on {address}: {error}") from error


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
        """Return the method's handler, or one that answers UNAUTHENTICATED."""
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
