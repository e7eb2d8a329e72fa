"""The output of `foretell status`."""

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from foretell.config.marks import ClusterError
from foretell.tools.view.cluster import ClusterView, merged
from foretell.tools.view.replicas import NoStatus, addresses_of, reports
from foretell.tools.view.table import table


def show_status(urls: list[str], cluster_file: str, api_key: str, *, as_json: bool = False) -> None:
    """Print the status of all replicas behind `urls`, or of a cluster file; end the process with
    code 1 if none answers."""
    try:
        urls = addresses_of(cluster_file) if cluster_file else urls
        found, wrong = reports(urls, api_key=api_key)
        view = merged(found)
    except (NoStatus, ClusterError) as error:
        raise SystemExit(str(error)) from error
    except (KeyError, TypeError) as error:
        raise SystemExit(f"{', '.join(urls)}: another release of Foretell? ({error!r})") from error
    if as_json:
        print(json.dumps(_for_programs(view) | {"problems": wrong}, indent=2))  # noqa: T201
        return
    console = Console()
    emulated = "emulated engines" if any(e.emulated for e in view.engines.values()) else ""
    notes = [f"[red]{escape(each)}[/]" for each in wrong]
    console.print(table(view, console.width, title=emulated, notes=notes))


def _for_programs(view: ClusterView) -> dict[str, Any]:
    """The data of the table, unrounded; sets are sorted lists."""
    fields = asdict(view) | {"engines": [asdict(engine) for engine in view.engines.values()]}
    return json.loads(json.dumps(fields, default=sorted))  # type: ignore[no-any-return]
