"""`foretell length`: evaluate estimates of output lengths."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, help="Evaluate estimates of output lengths (docs/tools.md)."
)


@app.command("eval")
def length_eval(
    file: Annotated[Path, typer.Argument(help="Answered prompts, .jsonl or .jsonl.gz.")],
    stream: Annotated[
        bool, typer.Option("--stream", help="Learn from each answer before the next estimate.")
    ] = False,
    model: Annotated[
        str,
        typer.Option(help="Folder of a length model; or shipped; or none: history alone."),
    ] = "shipped",
    train: Annotated[
        Path | None,
        typer.Option(help="Answered prompts that the baselines learn from, and the history."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Number of lines to read; 0: all.")] = 0,
) -> None:
    """Print how good estimates of output lengths are, as JSON."""
    try:
        from foretell.tools.length.report import evaluate_file
    except ImportError as error:
        raise SystemExit(
            f"length eval: {error}; pip install -e '.[length]' in the checkout"
        ) from error

    evaluate_file(file, train=train, model=model, stream=stream, limit=limit)
