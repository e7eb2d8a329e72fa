"""`foretell train-tagger`: train a length model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.tools.train.options import TrainOptions


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

        from foretell.length.window import ReadWindow
        from foretell.tools.train.run import train_tagger as run
    except ImportError as error:
        raise SystemExit(
            f"train-tagger: {error}; pip install -e '.[train]' in the checkout"
        ) from error

    if window:
        options = replace(options, window=ReadWindow(window[:2], window[2:4], window[4:]))
    console = Console(stderr=True)
    try:
        run(replace(options, teachers=tuple(teacher or ())), test or [], console)
    except (ValueError, OSError) as error:
        raise SystemExit(f"train-tagger: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("train-tagger: stopped; the same command goes on from here") from None
    console.print(f"{options.out}: ready; what it can do is in {options.out / 'README.md'}")


def train_small_tagger(
    train: Annotated[Path, typer.Argument(help="Answered prompts, as for `train-tagger`.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder of a length model: it teaches, and gets the small one.")
    ],
    work: Annotated[
        Path, typer.Option(help="Folder to keep in what the length model says of the prompts.")
    ] = Path(".small-tagger"),
    test: Annotated[
        list[Path] | None, typer.Option(help="Score the model on this file too; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for all random draws.")] = 0,
) -> None:
    """Train the small model that answers for a length model under load."""
    try:
        from rich.console import Console

        from foretell.tools.train.small import train_small
    except ImportError as error:
        raise SystemExit(
            f"train-small-tagger: {error}; pip install -e '.[length]' in the checkout"
        ) from error
    console = Console(stderr=True)
    try:
        scores = train_small(train, folder, work, test or [], seed, console)
    except (ValueError, OSError) as error:
        raise SystemExit(f"train-small-tagger: {error}") from error
    for name, s in scores.items():
        console.print(f"{name}: MAE {s.mae:.1f}, Acc-50 {s.acc_50:.1%}, pinball {s.pinball:.1f}")
