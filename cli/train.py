"""`foretell train-tagger`: train a length model."""

from pathlib import Path
from typing import Annotated

import typer


def train_tagger(
    train: Annotated[
        Path,
        typer.Argument(help="Answered prompts, .jsonl or .jsonl.gz (docs/tools.md)."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the model.")],
    encoder: Annotated[
        str,
        typer.Option(help="Hugging Face encoder, a folder or a name; scratch: a small RoBERTa."),
    ],
    tokenizer: Annotated[str, typer.Option(help="A tokenizer.json; empty: the encoder's.")] = "",
    test: Annotated[
        list[Path] | None, typer.Option(help="Score the model on this file too; may be repeated.")
    ] = None,
    layers: Annotated[int, typer.Option(min=0, help="Number of the encoder's layers; 0: all.")] = 0,
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
    taught: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Weight of the teachers in what is learnt.")
    ] = 0.5,
    epochs: Annotated[int, typer.Option(min=1, help="Number of passes over the file.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Prompts in a step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1.5e-4,
    seed: Annotated[int, typer.Option(help="Seed for all random draws.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Number of examples to read; 0: all.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="Number of threads; 0: one per core.")] = 0,
) -> None:
    """Train a length model. The same command goes on where an earlier run stopped."""
    try:
        from rich.console import Console

        from foretell.length.window import Window
        from tools.train.options import TrainOptions
        from tools.train.run import train_tagger as run
    except ImportError as error:
        raise SystemExit(
            f"train-tagger: {error}; pip install -e '.[train]' in the checkout"
        ) from error

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
