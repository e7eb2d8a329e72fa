"""`foretell status`: show the engines of a running cluster."""

from typing import Annotated

import typer


def status(
    url: Annotated[
        list[str] | None,
        typer.Option(help="Address of the schedulers, repeatable; default http://127.0.0.1:8000."),
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="FILE", help="Cluster file that has their addresses.")
    ] = "",
    api_key: Annotated[
        str, typer.Option(envvar="FORETELL_API_KEY", help="API key, if schedulers need one.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of a table.")
    ] = False,
) -> None:
    """Show the engines of a running cluster, as all schedulers together see them."""
    from foretell.tools.view.command import show_status

    show_status(url or ["http://127.0.0.1:8000"], cluster, api_key, as_json=as_json)
