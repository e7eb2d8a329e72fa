"""`foretell train-tagger` as typed on a command line."""

from pathlib import Path
from typing import Annotated

import typer


def train_tagger(
    train: Annotated[
        Path,
        typer.Argument(help="Answered prompts: JSON lines (docs/tools.md), .gz or not."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the model.")],
    encoder: Annotated[
        str,
        typer.Option(help="Hugging Face encoder, a folder or a name; scratch: a small RoBERTa."),
    ],
    tokenizer: Annotated[str, typer.Option(help="A tokenizer.json; empty: the encoder's.")] = "",
    test: Annotated[
        list[Path] | None, typer.Option(help="Score the model on this file too; may be repeated.")
    ] = None,
    layers: Annotated[int, typer.Option(min=0, help="Of the encoder, the first; 0: all.")] = 0,
    window: Annotated[
        tuple[int, int, int, int, int, int] | None,
        typer.Option(
            help="Tokens read: head and tail of the prompt, of the one before it, of its answer.",
            show_default="64 32 20 6 10 16",
        ),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(
            help="A trained model's folder: learn from what it says too; may be repeated."
        ),
    ] = None,
    taught: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the teachers in what is learnt.")
    ] = 0.5,
    epochs: Annotated[int, typer.Option(min=1, help="Times that the file is gone through.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Prompts per step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Of the encoder, at its highest.")] = 1.5e-4,
    seed: Annotated[int, typer.Option(help="Decides everything that is drawn.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Examples read; 0: all.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="0: as many as there are cores.")] = 0,
) -> None:
    """Train a length model. Run again with the same options, it goes on where it stopped."""
    try:
        from rich.console import Console

        from foretell.length.window import Window
        from tools.train.options import TrainOptions
        from tools.train.run import train_tagger as run
    except ImportError as error:
        raise SystemExit(f"train-tagger: {error}; pip install 'foretell[train]'") from error

    options = TrainOptions(
        train=train,
        out=out,
        encoder=encoder,
        tokenizer=tokenizer,
        layers=layers,
        teachers=tuple(teacher or ()),
        taught=taught,
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
        limit=limit,
        threads=threads,
        window=Window(window[:2], window[2:4], window[4:]) if window else Window(),
    )
    console = Console(stderr=True)
    try:
        run(options, test or [], console)
    except (ValueError, OSError) as error:
        raise SystemExit(f"train-tagger: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("train-tagger: stopped; the same command goes on from here") from None
    console.print(f"{out}: ready; what it can do is in {out / 'README.md'}")
