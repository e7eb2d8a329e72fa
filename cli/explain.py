"""`foretell explain`: why a request went where it went."""

from typing import Annotated

import typer


def explain(
    request_id: Annotated[str, typer.Argument(help="The x-request-id of the answer.")],
    url: Annotated[
        list[str] | None,
        typer.Option(help="Address of the schedulers, repeatable; default http://127.0.0.1:8000."),
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="FILE", help="Cluster file that has their addresses.")
    ] = "",
    api_key: Annotated[
        str, typer.Option(envvar="FORETELL_API_KEY", help="Admin key, if schedulers need keys.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="What the replica tells, as it is.")] = (
        False
    ),
) -> None:
    """Show why a request went where it went: predictions for each engine, the policy's scores,
    what happened, what would have happened elsewhere, and what an idle engine would have needed."""
    from foretell.tools.explain import show_explanation

    urls = url or ["http://127.0.0.1:8000"]
    show_explanation(request_id, urls, cluster, api_key, as_json=as_json)
