"""The metrics of a process that serves no other HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from foretell.config.settings import ListeningSettings


@contextmanager
def metrics_http(settings: ListeningSettings, registry: CollectorRegistry) -> Iterator[int]:
    """Serve /metrics from a thread; yields its port, -1 where none is wanted.

    SystemExit where the port is taken.
    """
    host, port = settings.host, settings.metrics_port
    if port < 0:
        yield -1
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SystemExit(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
