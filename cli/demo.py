"""`foretell demo`: a short load on a running cluster."""

from typing import Annotated

import typer


def demo(
    url: Annotated[str, typer.Option(help="Address of schedulers.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str, typer.Option(envvar="FORETELL_API_KEY", help="API key, if schedulers need one.")
    ] = "",
    rate: Annotated[float, typer.Option(min=0.01, help="Chats a second.")] = 6.0,
    seconds: Annotated[float, typer.Option(min=0, help="How long chats are sent.")] = 25.0,
    seed: Annotated[int, typer.Option(help="Seed for all random draws.")] = 1,
) -> None:
    """Send the chats that ship to a running cluster, and show how predictions met reality."""
    from foretell.tools.demo.command import demo as run_demo

    run_demo(url, api_key, rate, seconds, seed)
