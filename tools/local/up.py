"""`foretell up`: a whole cluster on this machine, until it is told to stop."""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from services.process import runtime
from services.process.children import ChildFailed
from services.process.folders import free_ports, is_free, run_folder, socket_folder
from tools.local.cluster import ENGINE_HOST, ClusterOptions, longest_socket_name, plan_cluster
from tools.local.state import ClusterState
from tools.local.supervisor import Supervisor

if TYPE_CHECKING:
    from tools.local.table import LiveTable


class CannotStart(Exception):
    """What stands in the way, and what the user can do about it."""


def up(
    options: ClusterOptions, *, run_dir: str, restart: bool, duration_s: float, plain: bool
) -> None:
    """Run the cluster; ends the process with code 1 and a message when it cannot."""
    try:
        _check(options)
        with (
            run_folder(run_dir) as folder,
            _only_one_in(folder),
            socket_folder(folder, longest_socket_name(options)) as sockets,
            _reserved_port(options) as port,
        ):
            ports = free_ports(ENGINE_HOST, options.engines + options.schedulers)
            plan = plan_cluster(replace(options, port=port), folder, sockets, ports)
            plan.write_instances(folder)
            state = ClusterState.of(plan, options.engine, folder / "cluster.json")
            session = _Session(state, plain or not sys.stdout.isatty(), duration_s)
            supervisor = Supervisor(plan, state, session.event, restart=restart)
            runtime.run(lambda stop: session.run(supervisor, stop))
    except (CannotStart, ChildFailed, OSError) as error:
        raise SystemExit(f"foretell up: {error}") from error


class _Session:
    """What the terminal shows while the supervisor works."""

    def __init__(self, state: ClusterState, plain: bool, duration_s: float) -> None:
        self._state = state
        self._plain = plain
        self._duration_s = duration_s
        self._began_s = time.monotonic()
        self._table: LiveTable | None = None

    async def run(self, supervisor: Supervisor, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        showing: asyncio.Task[None] | None = None

        def on_ready() -> None:
            nonlocal showing
            self._say_ready()
            if self._duration_s > 0:
                loop.call_later(self._duration_s, stop.set)
            if not self._plain:
                showing = asyncio.create_task(self._show())

        self.event("foretell", f"starting in {self._state.path.parent}")
        try:
            await supervisor.run(stop, on_ready)
        finally:
            if showing:
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)
        self.event("foretell", "stopped")

    def event(self, component: str, text: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {component:<18} {text}"
        if self._table:
            self._table.print_above(line)
        else:
            _say(line)

    async def _show(self) -> None:
        # Only now: what it imports would compete with the services for the processor.
        from tools.local.table import LiveTable

        with LiveTable(self._state) as table:
            self._table = table
            try:
                await table.keep_current()
            finally:
                self._table = None

    def _say_ready(self) -> None:
        seconds = time.monotonic() - self._began_s
        self.event("foretell", f"ready at {self._state.endpoint} after {seconds:.1f} s")
        request = {"model": self._state.model_name, "prompt": "Once upon a time", "max_tokens": 32}
        key = '-H "Authorization: Bearer $KEY" ' if api_key() else ""
        _say(
            f"\n  curl {self._state.endpoint}/v1/completions {key}"
            f"-H 'Content-Type: application/json' \\\n    -d '{json.dumps(request)}'\n"
        )


def api_key() -> str:
    """The first key that the schedulers started from this environment accept; "" if any does."""
    return os.environ.get("FORETELL_SCHEDULER_API_KEYS", "").split(",")[0].strip()


def _check(options: ClusterOptions) -> None:
    if options.engine == "vllm" and not options.model:
        raise CannotStart("vLLM needs a model: give its folder or name with --model")
    if options.engine == "vllm" and options.python and not Path(options.python).exists():
        raise CannotStart(f"--python: {options.python} does not exist")


@contextlib.contextmanager
def _only_one_in(run_dir: Path) -> Iterator[None]:
    """Refuse a folder in which another cluster runs; its sockets would be taken away from it."""
    with (run_dir / "cluster.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"another cluster runs in {run_dir}; stop it or choose another --run-dir"
            ) from error
        yield


@contextlib.contextmanager
def _reserved_port(options: ClusterOptions) -> Iterator[int]:
    """Hold the port that the schedulers share, so that nobody takes it while one restarts.

    A socket that is bound but does not listen receives no connections.
    """
    port = options.port or free_ports(options.host, 1)[0]
    if not is_free(options.host, port):
        raise CannotStart(
            f"port {port} on {options.host} is taken by another program, or not allowed; "
            "choose another with --port (0 finds a free one)"
        )
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((options.host, port))
        yield port


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
