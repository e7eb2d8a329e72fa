"""The live table of `foretell up`: the processes, and what engines and schedulers are doing."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field

import grpc
from rich.live import Live
from rich.table import Table

from foretell.v1 import predictor_pb2, predictor_pb2_grpc
from services.process.probe import http_get
from tools.local.state import ClusterState, Component

_INTERVAL_S = 1.0
_DEADLINE_S = 0.3
_WIDE_COLUMNS = 140  # of a terminal that has room for addresses
_COLOURS = {"ready": "green", "starting": "yellow", "restarting": "yellow", "dead": "red"}
_COLUMNS = (
    *("component", "state", "pid", "address", "restarts"),
    *("running", "waiting", "KV use", "snapshot age", "predictions", "requests"),
)


@dataclass(slots=True)
class Readings:
    """The last answers; what did not answer is missing."""

    status: dict[str, predictor_pb2.StatusResponse] = field(default_factory=dict)  # by engine
    requests: dict[str, int] = field(default_factory=dict)  # served, by scheduler


class Poller:
    """Asks every predictor and scheduler once; each has 0.3 s."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def read(self) -> Readings:
        readings = Readings()
        schedulers = [c for c in self._state.processes.values() if c.kind == "scheduler"]
        await asyncio.gather(
            *(self._ask_predictor(name, readings) for name in self._state.parts),
            *(_ask_scheduler(scheduler, self._state.api_key, readings) for scheduler in schedulers),
        )
        return readings

    async def close(self) -> None:
        await asyncio.gather(*(channel.close(None) for channel in self._channels.values()))

    async def _ask_predictor(self, engine: str, readings: Readings) -> None:
        address = self._state.parts[engine].predictor.address
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address)
        stub = predictor_pb2_grpc.PredictorStub(self._channels[address])
        with contextlib.suppress(grpc.aio.AioRpcError):
            readings.status[engine] = await stub.Status(
                predictor_pb2.StatusRequest(), timeout=_DEADLINE_S
            )


async def _ask_scheduler(scheduler: Component, api_key: str, readings: Readings) -> None:
    with contextlib.suppress(OSError):
        status, body = await http_get(f"{scheduler.address}/status", _DEADLINE_S, bearer=api_key)
        if status == 200:
            readings.requests[scheduler.name] = int(json.loads(body)["requests_total"])


def render(state: ClusterState, readings: Readings, *, wide: bool = True) -> Table:
    """One row per process; a launcher has none, as its engine and predictor stand for it.

    Without `wide` the addresses are left out; they are in cluster.json.
    """
    emulated = " (emulated engines)" if state.emulated else ""
    table = Table(title=f"{state.model_name} at {state.endpoint}{emulated}", title_justify="left")
    for column in _COLUMNS:
        if column != "address" or wide:
            text = column in ("component", "state", "address")
            table.add_column(column, justify="left" if text else "right", no_wrap=text)
    for component in state.components():
        if component.kind == "launcher":
            continue
        parts = state.parts.get(component.name)
        is_emulated = parts is not None and parts.emulated
        colour = _COLOURS.get(component.state, "white")
        table.add_row(
            component.name + (" [magenta]emulated[/]" if is_emulated else ""),
            f"[{colour}]{component.state}[/]",
            str(component.pid or ""),
            *((component.address,) if wide else ()),
            str(component.restarts or ""),
            *_load_cells(component, readings),
        )
    return table


def _load_cells(component: Component, readings: Readings) -> tuple[str, ...]:
    blank = ("",) * 5
    if component.kind == "scheduler":
        return (*blank, str(readings.requests.get(component.name, "?")))
    if component.kind == "predictor":
        status = readings.status.get(component.name.removesuffix(".predictor"))
        return (*blank[:4], str(status.predictions) if status else "?", "")
    if component.kind != "engine":
        return (*blank, "")
    status = readings.status.get(component.name)
    if status is None or status.snapshot_age_s < 0:  # no predictor, or none that heard the engine
        return (*("?",) * 4, "", "")
    load = status.load
    use = load.used_blocks / load.total_blocks if load.total_blocks else 0.0
    age = f"{status.snapshot_age_s:.2f} s"
    return (str(load.running), str(load.waiting), f"{use:.0%}", age, "", "")


async def keep_current(state: ClusterState, live: Live) -> None:
    """Ask and draw once a second until the cluster stops."""
    poller = Poller(state)
    try:
        while state.phase == "ready":
            readings = await poller.read()
            wide = live.console.width >= _WIDE_COLUMNS
            live.update(render(state, readings, wide=wide), refresh=True)
            await asyncio.sleep(_INTERVAL_S)
    finally:
        await poller.close()
