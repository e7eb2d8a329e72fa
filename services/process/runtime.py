"""What every service process needs: sockets, readiness, signals, logs. No service logic."""

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliApp

from foretell.config import ClusterError
from foretell.config.described import describe
from foretell.config.marks import plain
from foretell.config.variables import misspelt
from foretell.services import end_at_once

try:
    import uvloop
except ImportError:  # not built for this platform: the standard loop serves as well
    uvloop = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_WRITE_AGAIN_S = 1.0
_unwritten: dict[str, asyncio.TimerHandle] = {}
"""By ready file that could not be written: the timer of the next attempt."""
_when_serving: list[Callable[[], None]] = []
"""Functions to call once this process serves."""
PARENT_PID = "FORETELL_PARENT_PID"
"""Environment variable with the pid of the supervisor that started a process."""

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def load_settings(settings_class: type[SettingsT]) -> SettingsT:
    """Settings from flags, environment and cluster file.

    Ends the process with a readable message if one of them is wrong.
    """
    if not {"-h", "--help"}.isdisjoint(sys.argv):
        describe(settings_class)
    return _or_exit(settings_class, lambda: CliApp.run(settings_class))


def checked(settings_class: type[SettingsT], **values: Any) -> SettingsT:
    """Settings like those of `load_settings`, with `values` in the place of flags."""
    return _or_exit(settings_class, lambda: settings_class(**values))


def _or_exit(settings_class: type[SettingsT], load: Callable[[], SettingsT]) -> SettingsT:
    if wrong := list(misspelt(settings_class, os.environ)):
        raise SystemExit("\n".join(wrong))
    try:
        return load()
    except ClusterError as error:
        raise SystemExit(str(error)) from error
    except ValidationError as error:
        prefix = settings_class.model_config["env_prefix"]
        lines = []
        for item in error.errors():
            name = str(item["loc"][0]) if item["loc"] else ""
            where = f"{prefix}{name.upper()} or --{name.replace('_', '-')}: " if name else ""
            lines.append(f"{where}{plain(item['msg'])}")
        raise SystemExit("\n".join(lines)) from None  # pydantic's text would show values


def die_with_parent() -> None:
    """End with the supervisor that started this process, if one did, so that no orphan stays.

    Linux is asked for a SIGTERM when the parent ends; this survives an exec. The supervisor passes
    its pid in `PARENT_PID`, because no signal comes if it ended before Linux was asked.
    """
    parent_pid = os.environ.pop(PARENT_PID, "")  # not the parent of what this process starts
    if not parent_pid or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent_pid):
        raise SystemExit("the parent process has already ended")


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening TCP socket; `shared` lets other processes bind the same port beside it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise SystemExit(f"cannot listen on {host}:{port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def announce(ready_file: str, **facts: Any) -> None:
    """Announce that this process serves: from now on a signal lets it finish what is in progress.

    Atomically writes `facts` and the pid to `ready_file`, unless that is "". If that fails, for
    example on a full disk, it is tried again until it succeeds or something newer is announced.
    """
    while _when_serving:
        _when_serving.pop()()
    if not ready_file:
        return
    if ready_file in _unwritten:
        _unwritten.pop(ready_file).cancel()
    path = Path(ready_file)
    partial_path = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial_path.write_text(json.dumps({"pid": os.getpid(), **facts}))
        partial_path.replace(path)
    except OSError as error:
        logger.warning("cannot write %s, which will be tried again: %s", path, error)
        again = partial(announce, ready_file, **facts)
        loop = asyncio.get_running_loop()
        _unwritten[ready_file] = loop.call_later(_WRITE_AGAIN_S, again)


def run(main: Callable[[asyncio.Event], Awaitable[None]], *, starts_others: bool = False) -> None:
    """Run `main(stop)` to its end; SIGTERM or SIGINT sets `stop`, a second one ends at once.

    Before `announce`, either signal ends the process at once with code 0, because nothing is in
    progress yet. If the process `starts_others`, the signal sets `stop` even then, so that the
    process ends them.
    """
    die_with_parent()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end_at_once)

    async def supervised() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set():
                os._exit(130)
            stop.set()

        def listen() -> None:
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(signum, on_signal)

        _when_serving[:] = [listen]
        if starts_others:
            _when_serving.pop()()
        await main(stop)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(supervised())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of the event loop that services run on; None: the standard one."""
    return uvloop.new_event_loop if uvloop else None
