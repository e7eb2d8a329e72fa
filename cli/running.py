"""Commands about a running cluster: `foretell status`, `explain`, `demo` and `run-batch`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretell.batch.release import PLAIN_WINDOW
from foretell.cli.options import ApiKey, AsJson, ClusterFile, Seed, Urls, refusing

_HERE = "http://127.0.0.1:8000"


def status(
    url: Urls = None, cluster: ClusterFile = "", api_key: ApiKey = "", as_json: AsJson = False
) -> None:
    """Show the engines of a running cluster, as all schedulers together see them."""
    from foretell.tools.view.command import show_status

    show_status(url or [_HERE], cluster, api_key, as_json=as_json)


def explain(
    request_id: Annotated[str, typer.Argument(help="The x-request-id of the answer.")],
    url: Urls = None,
    cluster: ClusterFile = "",
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Show why a request was placed where it was: predictions for each engine, the policy's scores,
    what happened, what would have happened elsewhere, and what an idle engine would have needed.
    Where schedulers have named keys, an admin's is needed."""
    from foretell.tools.explain import show_explanation

    show_explanation(request_id, url or [_HERE], cluster, api_key, as_json=as_json)


def demo(
    url: Annotated[str, typer.Option(help="Address of schedulers.")] = _HERE,
    api_key: ApiKey = "",
    rate: Annotated[float, typer.Option(min=0.01, help="Chats a second.")] = 6.0,
    seconds: Annotated[float, typer.Option(min=0, help="How long chats are sent.")] = 25.0,
    seed: Seed = 1,
) -> None:
    """Send the shipped chats to a running cluster, and compare predicted with actual latencies."""
    from foretell.tools.demo import demo as run_demo

    run_demo(url, api_key, rate, seconds, seed)


def run_batch(
    input_file: Annotated[
        Path,
        typer.Option("--input-file", "-i", help="Requests, one JSON object a line, as OpenAI's."),
    ],
    output_file: Annotated[
        Path, typer.Option("--output-file", "-o", help="File to write the answers to.")
    ],
    model: Annotated[
        str, typer.Option(help="Model that all requests must ask for; empty: any that is served.")
    ] = "",
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Scheduler or OpenAI endpoint that answers; several are asked in turn. Default: "
            f"{_HERE}.",
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests at once; 0: as predictions allow, or "
            f"{PLAIN_WINDOW} where no scheduler answers.",
        ),
    ] = 0,
    api_key: ApiKey = "",
    order: Annotated[
        Literal["file", "blend"],
        typer.Option(
            help="Order in which requests are sent: the file's, or the one that ends soonest in "
            "a simulation."
        ),
    ] = "file",
    profile: Annotated[
        str, typer.Option(help="GPU profile of the engines, for `--order blend`.")
    ] = "H100/Llama-3.1-8B",
) -> None:
    """Have a file of requests answered, as `vllm run-batch` does. Run again after an interruption,
    it continues where it stopped."""
    with refusing("run-batch", needs="local"):
        from foretell.tools.batch.run import CannotRun, answer_file
        from foretell.tools.progress import showing
    with refusing("run-batch", CannotRun, OSError), showing("reading") as show:
        found = answer_file(
            input_file,
            output_file,
            endpoint or [_HERE],
            show,
            model=model,
            concurrency=concurrency,
            api_key=api_key,
            profile=profile if order == "blend" else "",
        )
    if found.order:
        typer.echo(found.order)
    typer.echo(f"{found}: {output_file}")
