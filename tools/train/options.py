"""Options of a training run."""

from dataclasses import dataclass, field
from pathlib import Path

from foretell.length.window import Window

SCRATCH = "scratch"
"""In place of an encoder's folder: a small RoBERTa that knows nothing yet."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """All of it is part of the run: resuming with other options is refused."""

    train: Path
    out: Path
    encoder: str
    """A Hugging Face folder or name, or `SCRATCH`."""
    tokenizer: str = ""
    """A tokenizer.json; empty: the encoder's."""
    layers: int = 0
    """The encoder's first layers; 0: all."""
    epochs: int = 3
    batch: int = 64
    learning_rate: float = 1.5e-4
    """The encoder's highest learning rate."""
    head_learning_rate: float = 1e-3
    train_embeddings: bool = False
    """Word embeddings are half of a small encoder's weights and hardly move."""
    held_out: float = 0.03
    """Share of the conversations that stop the training and calibrate."""
    patience: int = 2
    """Evaluations, four an epoch, without a better one after which training stops."""
    seed: int = 0
    limit: int = 0
    """Examples read; 0: all."""
    threads: int = 0
    """Threads of torch; 0: one per core."""
    window: Window = field(default_factory=Window)
    neighbours: float = 0.8
    """Bins: deviation of the target around the true one; 0: only that."""
    teachers: tuple[str, ...] = ()
    """Folders of trained models (or `shipped`) whose mean distribution is a target too."""
    taught: float = 0.5
    """Share of the teachers in the target, where there are any."""
    figures: bool = True
    """See what needs no understanding beside the text."""
