"""The output of `foretell status`."""

from rich.console import Console
from rich.markup import escape

from foretell.config.marks import ClusterError
from tools.view.cluster import merged
from tools.view.replicas import NoStatus, addresses_of, reports
from tools.view.table import table


def show_status(urls: list[str], cluster_file: str, api_key: str) -> None:
    """Print what all replicas behind `urls` say, or those of a cluster file; ends the process with
    code 1 without one."""
    try:
        urls = addresses_of(cluster_file) if cluster_file else urls
        found, wrong = reports(urls, api_key=api_key)
        view = merged(found)
    except (NoStatus, ClusterError) as error:
        raise SystemExit(str(error)) from error
    except (KeyError, TypeError) as error:
        raise SystemExit(f"{', '.join(urls)}: another release of Foretell? ({error!r})") from error
    console = Console()
    emulated = "emulated engines" if any(e.emulated for e in view.engines.values()) else ""
    notes = [f"[red]{escape(each)}[/]" for each in wrong]
    console.print(table(view, console.width, title=emulated, notes=notes))
