"""The HTTP server of an emulated engine: uvicorn, as in vLLM."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

_DRAIN_S = 10


async def serve_http(
    app: ASGIApp, sock: socket.socket, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    """Serve `app` until `stop`; requests in progress get `_DRAIN_S` to end."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=_DRAIN_S,
        server_header=False,
        headers=[("x-foretell-emulated", "true")],
        backlog=2048,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore  # `runtime.run` handles them
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        if task.done():
            await task
            raise RuntimeError("the HTTP server ended before it started")
        await asyncio.sleep(0.005)
    on_ready()
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    server.should_exit = True
    await task
