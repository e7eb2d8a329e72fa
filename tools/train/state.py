"""A training run on disk, so that it can be resumed where it stopped."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretell.tools.train.options import TrainOptions

_LATEST, _BEST = "latest.pt", "best.pt"
_RUNNING = ("out", "threads")  # options that may change between stop and resumption


@dataclass(slots=True)
class TrainingProgress:
    """The progress of a run."""

    epoch: int = 0
    batch: int = 0
    """Steps of the epoch that are done."""
    steps: int = 0
    best_loss: float = float("inf")
    evaluations_since_best: int = 0
    loss: float = 0.0
    """Running mean of the batches' losses."""


class Store:
    """The state of a run, in one folder."""

    def __init__(self, options: TrainOptions) -> None:
        self._folder = options.out / "training"
        self._options = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(options).items()
            if name not in _RUNNING
        }

    def save(self, progress: TrainingProgress, **parts: nn.Module | torch.optim.Optimizer) -> None:
        """Replace what was saved before, atomically; `load` takes the same `parts`."""
        states = {name: part.state_dict() for name, part in parts.items()}
        self._write(_LATEST, {"options": self._options, "progress": asdict(progress), **states})

    def load(self, **parts: nn.Module | torch.optim.Optimizer) -> TrainingProgress:
        """Load the saved run into `parts`, and return its progress; ValueError if it is another."""
        if not (self._folder / _LATEST).exists():
            return TrainingProgress()
        found = self._read(_LATEST)
        was = found["options"]
        changed = [name for name, value in self._options.items() if was.get(name) != value]
        if changed:
            raise ValueError(
                f"{self._folder} holds a run with other options ({', '.join(changed)}): "
                "give them again, or another folder, or delete this one"
            )
        for name, part in parts.items():
            part.load_state_dict(found[name])
        return TrainingProgress(**found["progress"])

    def save_best(self, model: nn.Module) -> None:
        """Save the weights to end with."""
        self._write(_BEST, model.state_dict())

    def load_best(self, model: nn.Module) -> None:
        """Load the weights to end with into `model`."""
        model.load_state_dict(self._read(_BEST))

    def _write(self, name: str, content: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f"{name}.part"
        torch.save(content, part)
        part.replace(self._folder / name)

    def _read(self, name: str) -> Any:
        return torch.load(self._folder / name, weights_only=True)  # runs no code from the file
