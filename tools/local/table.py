"""The live table of `foretell up`: all engines, and other processes that are not ready."""

import asyncio

from rich.live import Live
from rich.table import Table

from foretell.services.process.probe import http_get
from foretell.tools.local.state import ClusterState, Component
from foretell.tools.view.cluster import ClusterView, merged
from foretell.tools.view.replicas import NoStatus, Report, parsed
from foretell.tools.view.table import table

_INTERVAL_S = 1.0
_DEADLINE_S = 0.5


async def read(state: ClusterState) -> ClusterView:
    """The merged status of all schedulers that answer within half a second."""
    asked = (_report(each, state.api_key) for each in state.schedulers)
    return merged(report for report in await asyncio.gather(*asked) if report is not None)


async def _report(scheduler: str, api_key: str) -> Report | None:
    address = f"{scheduler}/status"
    try:
        status, body = await http_get(address, _DEADLINE_S, bearer=api_key)
        return parsed(address, body) if status == 200 else None
    except (OSError, NoStatus):
        return None


def render(state: ClusterState, view: ClusterView, width: int) -> Table:
    """A row for each engine; other processes are named if they are not ready."""
    emulated = " (emulated engines)" if state.emulated else ""
    engines = {parts.engine.name: parts.engine for parts in state.parts.values()}
    notes = [
        f"[yellow]{each.name} is {each.state}[/]{_restarts(each)}"
        for each in state.components()
        if each.name not in engines and (each.state != "ready" or each.restarts)
    ]
    return table(
        view,
        width,
        title=f"{state.model_name} at {state.endpoint}{emulated}",
        notes=notes,
        states={name: engine.state for name, engine in engines.items()},
    )


def _restarts(component: Component) -> str:
    return f", restarted {component.restarts} times" if component.restarts else ""


async def keep_current(state: ClusterState, live: Live) -> None:
    """Ask and draw once a second until the cluster stops."""
    while state.phase == "ready":
        live.update(render(state, await read(state), live.console.width), refresh=True)
        await asyncio.sleep(_INTERVAL_S)
