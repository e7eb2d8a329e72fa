"""A training run on disk, so that it can go on where it stopped. No pickle."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.train.options import TrainOptions

_STATE, _LATEST, _BEST = "training.json", "latest.safetensors", "best.safetensors"
_RUNNING = ("out", "threads")  # options that may change between stop and resumption


@dataclass(slots=True)
class Progress:
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

    def save(
        self,
        progress: Progress,
        model: nn.Module,
        averaged: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Replaces what was saved before, whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        tensors |= {f"averaged.{name}": value for name, value in averaged.state_dict().items()}
        for number, slots in optimizer.state_dict()["state"].items():
            for name, value in slots.items():
                tensors[f"optimizer.{number}.{name}"] = value
        self._write(_LATEST, tensors)
        # Written last: what it tells of is there.
        part = self._folder / f"{_STATE}.part"
        text = {"options": self._options, "progress": asdict(progress)}
        part.write_text(json.dumps(text, indent=1) + "\n")
        part.replace(self._folder / _STATE)

    def save_best(self, model: nn.Module) -> None:
        """Save the weights to end with."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(_BEST, dict(model.state_dict()))

    def load_best(self, model: nn.Module) -> None:
        """Load the weights to end with into `model`."""
        model.load_state_dict(load_file(str(self._folder / _BEST)))

    def load(
        self, model: nn.Module, averaged: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Progress:
        """The run so far, into what is given; ValueError where it was another run."""
        if not (self._folder / _STATE).exists():
            return Progress()
        found: dict[str, Any] = json.loads((self._folder / _STATE).read_text())
        same = json.loads(json.dumps(self._options))
        if found["options"] != same:
            changed = [name for name in same if found["options"].get(name) != same[name]]
            raise ValueError(
                f"{self._folder} holds a run with other options ({', '.join(changed)}): "
                "give them again, or another folder, or delete this one"
            )
        tensors = load_file(str(self._folder / _LATEST))
        model.load_state_dict(_under(tensors, "model."))
        averaged.load_state_dict(_under(tensors, "averaged."))
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in _under(tensors, "optimizer.").items():
            number, slot = name.split(".", 1)
            slots.setdefault(int(number), {})[slot] = value
        optimizer.load_state_dict(
            {"state": slots, "param_groups": optimizer.state_dict()["param_groups"]}
        )
        return Progress(**found["progress"])

    def _write(self, name: str, tensors: dict[str, Tensor]) -> None:
        part = self._folder / f"{name}.part"
        save_file({key: value.contiguous() for key, value in tensors.items()}, str(part))
        part.replace(self._folder / name)


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
