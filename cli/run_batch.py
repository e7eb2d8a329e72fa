"""`foretell run-batch`: a file of requests, answered without a batch service."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretell.batch.release import PLAIN_WINDOW


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
            "http://127.0.0.1:8000.",
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
    api_key: Annotated[
        str, typer.Option(envvar="FORETELL_API_KEY", help="Bearer key that the endpoint wants.")
    ] = "",
    order: Annotated[
        Literal["file", "blend"],
        typer.Option(
            help="Order in which requests are sent: the file's, or the one that is done soonest in "
            "a simulation."
        ),
    ] = "file",
    profile: Annotated[
        str, typer.Option(help="GPU profile of the engines, for `--order blend`.")
    ] = "H100/Llama-3.1-8B",
) -> None:
    """Have a file of requests answered, as `vllm run-batch` does. Run again after any interruption,
    it goes on where it was."""
    try:
        from foretell.tools.batch.run import CannotRun, answer_file
        from foretell.tools.progress import showing
    except ImportError as error:
        raise SystemExit(
            f"run-batch: {error}; pip install -e '.[local]' in the checkout"
        ) from error
    urls = endpoint or ["http://127.0.0.1:8000"]
    try:
        with showing("reading") as show:
            found = answer_file(
                input_file,
                output_file,
                urls,
                show,
                model=model,
                concurrency=concurrency,
                api_key=api_key,
                profile=profile if order == "blend" else "",
            )
    except (CannotRun, OSError) as error:
        raise SystemExit(f"run-batch: {error}") from error
    if found.order:
        typer.echo(found.order)
    typer.echo(f"{found}: {output_file}")
