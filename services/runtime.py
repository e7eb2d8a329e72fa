"""What every service process needs: sockets, readiness, signals, logs. No service logic."""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

try:
    import uvloop
except ImportError:  # not built for this platform: the standard loop serves as well
    uvloop = None

_PR_SET_PDEATHSIG = 1


def setup_logging(level: str) -> None:
    """One line per event on stderr."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    # One line per request relayed or probed is noise, and URLs may carry what users typed.
    for noisy in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def die_with_parent() -> None:
    """Ask Linux to send SIGTERM when the parent ends, so that no orphan outlives a supervisor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening TCP socket; `shared` lets other processes bind the same port beside it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise SystemExit(f"cannot listen on {host}:{port}: {error.strerror}") from error
    sock.listen(2048)
    sock.setblocking(False)
    return sock


def announce(ready_file: str, **facts: Any) -> None:
    """Atomically write `facts` and this pid to `ready_file`, if one is wanted."""
    if not ready_file:
        return
    path = Path(ready_file)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps({"pid": os.getpid(), **facts}))
    partial.replace(path)


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers of its own: `run` decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(
    app: Any,
    sockets: list[socket.socket],
    stop: asyncio.Event,
    *,
    on_ready: Callable[[], None] = lambda: None,
    drain_s: float = 10.0,
) -> None:
    """Serve `app` on `sockets` until `stop`; requests in progress get `drain_s` to end."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=int(drain_s),
        server_header=False,
        backlog=2048,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=sockets))
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


def run(main: Callable[[asyncio.Event], Awaitable[None]], *, with_parent: bool = False) -> None:
    """Run `main(stop)` to its end; SIGTERM and SIGINT set `stop`, a second one ends at once."""
    if with_parent:
        die_with_parent()

    async def supervised() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set():
                os._exit(130)
            stop.set()

        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, on_signal)
        await main(stop)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(supervised())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    return uvloop.new_event_loop if uvloop else None
