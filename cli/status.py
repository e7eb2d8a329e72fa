"""`foretell status`: show the instances of a running cluster."""

from typing import Annotated

import typer


def status(
    url: Annotated[str, typer.Option(help="Address of a scheduler.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str, typer.Option(envvar="FORETELL_API_KEY", help="API key, if the scheduler needs one.")
    ] = "",
) -> None:
    """Show the instances of a running cluster as a scheduler sees them."""
    from tools.status import show_status

    show_status(url, api_key)
