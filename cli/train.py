"""`foretell train-tagger`: train a length model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.options import taking
from tools.train.options import TrainOptions


@taking(TrainOptions)
def train_tagger(
    options: TrainOptions,
    test: Annotated[
        list[Path] | None, typer.Option(help="Score the model on this file too; may be repeated.")
    ] = None,
    window: Annotated[
        tuple[int, int, int, int, int, int] | None,
        typer.Option(
            help="Tokens read: head and tail of the prompt, of the prompt before, of its answer.",
            show_default="64 32 20 6 10 16",
        ),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(help="Folder of a trained model to learn from too; may be repeated."),
    ] = None,
) -> None:
    """Train a length model. The same command goes on where an earlier run stopped."""
    try:
        from rich.console import Console

        from foretell.length.window import Window
        from tools.train.run import train_tagger as run
    except ImportError as error:
        raise SystemExit(
            f"train-tagger: {error}; pip install -e '.[train]' in the checkout"
        ) from error

    if window:
        options = replace(options, window=Window(window[:2], window[2:4], window[4:]))
    console = Console(stderr=True)
    try:
        run(replace(options, teachers=tuple(teacher or ())), test or [], console)
    except (ValueError, OSError) as error:
        raise SystemExit(f"train-tagger: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("train-tagger: stopped; the same command goes on from here") from None
    console.print(f"{options.out}: ready; what it can do is in {options.out / 'README.md'}")
