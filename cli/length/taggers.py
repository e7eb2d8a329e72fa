"""What can be evaluated: estimators of output lengths behind one interface."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from cli.length.dataset import Example
from foretell.length import LengthHistory
from foretell.model import LengthEstimate


class Tagger(Protocol):
    """Estimates lengths, and may learn from answers as they come."""

    def estimate(self, examples: Sequence[Example]) -> list[LengthEstimate]:
        """One estimate an example; what was answered is not looked at."""

    def observe(self, example: Example) -> None:
        """Learn from one answer."""


class HistoryTagger:
    """What the tagger service answers without a checkpoint."""

    def __init__(self) -> None:
        self._history = LengthHistory()

    def estimate(self, examples: Sequence[Example]) -> list[LengthEstimate]:
        """By model and prompt length."""
        return [
            self._history.estimate(
                example.model_name,
                example.conversation.prompt_tokens,
                example.conversation.max_tokens,
            )
            for example in examples
        ]

    def observe(self, example: Example) -> None:
        """Keep the length."""
        self._history.observe(
            example.model_name,
            example.conversation.prompt_tokens,
            example.output_tokens,
            example.censored,
        )


def load_tagger(folder: Path) -> Tagger:
    """The tagger whose checkpoint is in `folder`; raises `ValueError` if there is none."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    raise ValueError(f"{folder} holds no encoder that this version of Foretell can evaluate")
