"""`foretell up`: a whole cluster on this machine, until it is stopped."""

import asyncio
import contextlib
import json
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from foretell.config import (
    BatchSettings,
    EmulatorSettings,
    LauncherSettings,
    PredictorSettings,
    SchedulerSettings,
    TaggerSettings,
)
from foretell.config.cluster import Cluster, load_cluster
from foretell.config.instances import Members, members_json
from foretell.config.layout import ENGINES_FILE, INSTANCES_FILE
from foretell.config.marks import ClusterError, field_name, plain
from foretell.config.settings import ProcessSettings
from foretell.services.process import runtime
from foretell.services.process.children import ChildFailed
from foretell.services.process.folders import (
    free_ports,
    is_free,
    only_one,
    private_folder,
    run_folder,
    socket_folder,
)
from foretell.tools.envoy import NoEnvoy
from foretell.tools.local.options import UpFlags
from foretell.tools.local.plan import (
    ENGINE_HOST,
    ClusterPlan,
    Kind,
    longest_socket_name,
    placed,
    plan_cluster,
)
from foretell.tools.local.state import ClusterState
from foretell.tools.local.supervisor import Supervisor

if TYPE_CHECKING:
    from rich.live import Live


class CannotStart(Exception):
    """The cluster cannot start; the text says why, and what the user can do."""


_OF_ENGINES = (
    *("engines", "engine", "profile", "model", "python", "engine_args", "start_timeout"),
)
"""Flags that describe the engines; not allowed with a cluster file, which describes them."""


def up(
    cluster_file: str,
    flags: UpFlags,
    *,
    run_dir: str,
    restart: bool,
    plain: bool,
) -> None:
    """Run the cluster; ends the process with code 1 and a message when it cannot."""
    try:
        cluster = wanted_cluster(cluster_file, flags)
        with (
            run_folder(run_dir) as folder,
            only_one(folder / "cluster.lock", _taken(folder)),
            socket_folder(folder, longest_socket_name(cluster)) as sockets,
            _reserved_ports(cluster) as port,
        ):
            engines = len(cluster.engine_list())
            ports = free_ports(ENGINE_HOST, engines + cluster.schedulers.replicas)
            cluster = with_secret(placed(cluster, sockets, port, ports[:engines]), folder)
            file = folder / "cluster.yaml"
            file.write_text(cluster.model_dump_json(exclude_unset=True, indent=1))  # YAML too
            plan = plan_cluster(cluster, file, folder, ports[engines:], restart=restart)
            keys = _check_settings(plan, str(file))
            key = keys.split(",")[0].strip()
            plan = _prepared_to_provision(plan, key) if plan.comes_and_goes else plan
            state = ClusterState.of(plan, folder / "cluster.json", api_key=key)
            https_port = cluster.schedulers.https_port
            plain = plain or not sys.stdout.isatty()
            session = _Session(state, plain, https_port)
            supervisor = Supervisor(plan, state, session.event)
            runtime.run(lambda stop: session.run(supervisor, stop), starts_others=True)
    except (CannotStart, ChildFailed, ClusterError, NoEnvoy, OSError) as error:
        raise SystemExit(f"foretell up: {error}") from error


def wanted_cluster(cluster_file: str, flags: UpFlags) -> Cluster:
    """The file's cluster, or else one of emulated engines, as changed by the flags.

    Raises CannotStart or ClusterError, which say what is wrong with either.
    """
    data: dict[str, Any] = {"engines": [_engines_of(flags)], "models": _models_of(flags)}
    try:
        bounds = flags.bounds()
    except ValueError as error:
        raise CannotStart(str(error)) from error
    if cluster_file:
        given = [name for name in _OF_ENGINES if getattr(flags, name) is not None]
        if given:
            raise CannotStart(
                f"--{given[0].replace('_', '-')} does not go with --cluster: the file says it"
            )
        data = load_cluster(cluster_file).model_dump(exclude_unset=True)
    for section, field, value in (
        ("schedulers", "replicas", flags.schedulers),
        ("schedulers", "listen", flags.host),
        ("schedulers", "port", flags.port),
        ("schedulers", "envoy", flags.envoy),
        ("policy", "name", flags.policy or None),
        ("provisioning", "enabled", bounds and True),
        ("provisioning", "minimum", bounds and bounds[0]),
        ("provisioning", "maximum", bounds and bounds[1]),
    ):
        if value is not None:
            data.setdefault(section, {})[field] = value
    try:
        cluster = Cluster.model_validate(data).checked()
    except ValidationError as error:
        problems = (f"{field_name(item['loc'])}: {plain(item['msg'])}" for item in error.errors())
        raise CannotStart("; ".join(problems)) from None
    cluster = cluster.with_places()
    if len(cluster.host_names()) > 1:
        raise CannotStart(
            f"the cluster has several hosts ({', '.join(cluster.host_names())}): write compose "
            "files with `foretell render compose`, or start each process with --cluster"
        )
    for engines in cluster.engines:
        if engines.python and not Path(engines.python).exists():
            raise CannotStart(f"python: {engines.python} does not exist")
    return cluster


def with_secret(cluster: Cluster, folder: Path) -> Cluster:
    """The cluster with a secret of its own, if schedulers and the batch service need one."""
    if not cluster.batches.folder or cluster.traffic.secret_file:
        return cluster
    file = folder / "secret"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    traffic = cluster.traffic.model_copy(update={"secret_file": str(file)})
    return cluster.model_copy(update={"traffic": traffic})


def _engines_of(flags: UpFlags) -> dict[str, Any]:
    section = {
        "engines": flags.engines or 4,
        "kind": flags.engine or "emulated",
        "profile": flags.profile,
        "python": flags.python and str(Path(flags.python).absolute()),
        "args": flags.engine_args,
        "start_timeout_s": flags.start_timeout,
    }
    return {key: value for key, value in section.items() if value is not None}


def _models_of(flags: UpFlags) -> dict[str, Any]:
    if not flags.model:
        return {}
    folder = Path(flags.model)
    return {flags.model: {"path": str(folder.absolute() if folder.is_dir() else folder)}}


def _prepared_to_provision(plan: ClusterPlan, key: str) -> ClusterPlan:
    """Write an empty list of engines; return the plan with a key of the schedulers for its
    provisioner."""
    folder = Path(plan.layout.provisioner_folder)
    private_folder(folder)
    (folder / ENGINES_FILE).unlink(missing_ok=True)  # left by an earlier cluster
    models = plan.layout.provisioner()["models"]
    (folder / INSTANCES_FILE).write_text(members_json(Members(models=tuple(models))))
    env = {"FORETELL_PROVISIONER_SCHEDULER_API_KEY": key} if key else {}
    processes = (
        replace(p, program=replace(p.program, env=env)) if p.kind == "provisioner" else p
        for p in plan.processes
    )
    return replace(plan, processes=tuple(processes))


def _check_settings(plan: ClusterPlan, file: str) -> str:
    """Refuse a wrong environment variable before anything starts; return the endpoint's keys."""
    keys = ""
    settings: dict[Kind, type[ProcessSettings]] = {
        "tagger": TaggerSettings,
        "launcher": LauncherSettings,
        "scheduler": SchedulerSettings,
        "batch": BatchSettings,
    }
    for process in plan.processes:
        if process.kind not in settings:
            continue
        checked = runtime.checked(settings[process.kind], cluster=file, name=process.program.name)
        if isinstance(checked, SchedulerSettings):
            keys = checked.api_keys.get_secret_value()
    for engine in plan.layout.cluster.engine_list():
        runtime.checked(PredictorSettings, cluster=file, name=engine.name)
        if engine.section.kind == "emulated":
            runtime.checked(EmulatorSettings, cluster=file, name=engine.name)
    return keys


class _Session:
    """What the terminal shows while the supervisor works."""

    def __init__(self, state: ClusterState, plain: bool, https_port: int) -> None:
        self._state = state
        self._plain = plain
        self._https_port = https_port
        self._began_s = time.monotonic()
        self._live: Live | None = None

    async def run(self, supervisor: Supervisor, stop: asyncio.Event) -> None:
        showing: asyncio.Task[None] | None = None

        def on_ready() -> None:
            nonlocal showing
            self._say_ready()
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
        if self._live:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            _say(line)

    async def _show(self) -> None:
        # Imported late, so that it does not compete with starting services for the processor.
        from rich.live import Live

        from foretell.tools.local.table import keep_current

        with Live(auto_refresh=False) as live:
            self._live = live
            try:
                await keep_current(self._state, live)
            finally:
                self._live = None

    def _say_ready(self) -> None:
        seconds = time.monotonic() - self._began_s
        self.event("foretell", f"ready at {self._state.endpoint} after {seconds:.1f} s")
        if self._https_port:
            self.event("foretell", f"serves clients with TLS at port {self._https_port}")
        request = {"prompt": "Once upon a time", "max_tokens": 32}
        if self._state.model_name:
            request = {"model": self._state.model_name, **request}
        key = '-H "Authorization: Bearer $KEY" ' if self._state.api_key else ""
        _say(
            f"\n  curl {self._state.endpoint}/v1/completions {key}"
            f"-H 'Content-Type: application/json' \\\n    -d '{json.dumps(request)}'\n"
        )


def _taken(run_dir: Path) -> CannotStart:
    """The error if another cluster has this folder: both would use the same sockets."""
    return CannotStart(f"another cluster runs in {run_dir}; stop it or choose another --run-dir")


@contextlib.contextmanager
def _reserved_ports(cluster: Cluster) -> Iterator[int]:
    """Hold the ports that schedulers share, so that no other program takes one while they restart;
    yield the port without TLS."""
    section = cluster.schedulers
    port = section.port or free_ports(section.plain_listen, 1)[0]
    with contextlib.ExitStack() as held:
        held.enter_context(_held(section.plain_listen, port, "--port (0 finds a free one)"))
        if section.https_port:
            held.enter_context(_held(section.listen, section.https_port, "schedulers.https_port"))
        yield port


@contextlib.contextmanager
def _held(host: str, port: int, setting: str) -> Iterator[None]:
    """Hold a port. A socket that is bound but does not listen receives no connections."""
    if not is_free(host, port):
        raise CannotStart(
            f"port {port} on {host} is taken by another program, or not allowed; "
            f"choose another with {setting}"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, port))
        yield


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a full disk behind stdout must not end the cluster
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
