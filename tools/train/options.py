"""Options of a training run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from foretell.length.window import ReadWindow

SCRATCH = "scratch"
"""In place of an encoder's folder: a small RoBERTa with random weights."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of a run, which can only be resumed with the same ones (but `out` and `threads`)."""

    train: Annotated[
        Path, typer.Argument(help="Answered prompts, .jsonl or .jsonl.gz (docs/tools.md).")
    ]
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the model.")]
    encoder: Annotated[
        str,
        typer.Option(help="Hugging Face encoder, a folder or a name; scratch: a small RoBERTa."),
    ]
    tokenizer: Annotated[str, typer.Option(help="A tokenizer.json; empty: the encoder's.")] = ""
    layers: Annotated[int, typer.Option(min=0, help="Number of the encoder's layers; 0: all.")] = 0
    taught: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Weight of the teachers in what is learnt.")
    ] = 0.5
    epochs: Annotated[int, typer.Option(min=1, help="Number of passes over the file.")] = 3
    batch: Annotated[int, typer.Option(min=1, help="Prompts in a step.")] = 64
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1.5e-4
    seed: Annotated[int, typer.Option(help="Seed for all random draws.")] = 0
    limit: Annotated[int, typer.Option(min=0, help="Number of examples to read; 0: all.")] = 0
    threads: Annotated[int, typer.Option(min=0, help="Number of threads; 0: one per core.")] = 0
    window: ReadWindow = field(default_factory=ReadWindow)
    teachers: tuple[str, ...] = ()
    """Folders of trained models (or `shipped`) whose mean distribution is a target, too."""
    held_out: float = 0.03
    """Share of the conversations held out, for early stopping and calibration."""
    patience: int = 2
    """Training stops after this number of evaluations, four an epoch, without a better one."""
