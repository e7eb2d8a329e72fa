"""What a scheduler says about its instances."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from services.process.probe import get

_TIMEOUT_S = 5.0


def show_status(url: str, api_key: str) -> None:
    """Print the status of the scheduler at `url`; ends the process with code 1 without one."""
    address = f"{url.rstrip('/')}/status"
    try:
        code, body = get(address, _TIMEOUT_S, bearer=api_key)
    except OSError as error:
        raise SystemExit(f"no scheduler answers at {url}: {error}") from error
    if code == 401:
        raise SystemExit(f"{address} wants a key: give one with --api-key")
    if code != 200:
        raise SystemExit(f"{address} answers {code}: is it a scheduler of Foretell?")
    try:
        report = json.loads(body)
        table = render(report)
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{address} gives no status of a scheduler") from error
    Console().print(table)


def render(report: dict[str, Any]) -> Table:
    """The table for a scheduler's `/status` report."""
    title = f"{report['replica_id']}: {report['policy']}, {report['requests_total']} requests"
    table = Table(title=title, title_justify="left")
    for column in ("instance", "health", "outstanding", "dispatched", "models", "url"):
        number = column in ("outstanding", "dispatched")
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for instance in report["instances"]:
        emulated = " [magenta]emulated[/]" if instance.get("emulated") else ""
        table.add_row(
            f"{instance['instance_id']}{emulated}",
            "[green]up[/]" if instance["healthy"] else "[red]down[/]",
            str(instance["outstanding"]),
            str(instance["dispatched_total"]),
            ", ".join(instance["model_names"]),
            instance["url"],
        )
    return table
