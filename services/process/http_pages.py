"""Serves an aiohttp application, for services that relay no answers of engines."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from foretell.services.process import runtime
from foretell.services.process.folders import private_folder


@asynccontextmanager
async def served(
    app: web.Application, address: str, drain_s: float, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve at `unix:PATH` or `HOST:PORT`; yields the address with its actual port. At the end,
    requests in progress get `drain_s` to finish. SystemExit if the address is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=drain_s)
    await runner.setup()
    try:
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:").removeprefix("//"))
            private_folder(path.parent)
            await web.UnixSite(runner, path).start()
            yield address
        else:
            host, _, port = address.rpartition(":")
            sock = runtime.bind(host.strip("[]"), int(port))
            await web.SockSite(runner, sock, ssl_context=tls).start()
            yield f"{host}:{sock.getsockname()[1]}"
    finally:
        await runner.cleanup()
