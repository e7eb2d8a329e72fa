"""What can be evaluated: estimators of output lengths behind one interface."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from cli.length.dataset import Example
from foretell.length import LengthHistory
from foretell.length.bins import estimates
from foretell.model import LengthEstimate
from services.tagger.encoder import Encoder


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


class EncoderTagger:
    """A trained length model by itself."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def estimate(self, examples: Sequence[Example]) -> list[LengthEstimate]:
        """By what the conversation says."""
        conversations = [example.conversation for example in examples]
        found = self._encoder.probabilities(
            conversations, [example.model_name for example in examples]
        )
        return estimates(found, [c.max_tokens for c in conversations], "model")

    def observe(self, example: Example) -> None:
        """Learns nothing."""


def load_tagger(folder: Path) -> Tagger:
    """The length model in `folder`; raises `ValueError` that says why it cannot be used."""
    try:
        return EncoderTagger(Encoder(folder))
    except OSError as error:
        raise ValueError(f"{folder} holds no length model: {error}") from error
