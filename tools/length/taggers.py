"""The estimators of output lengths that can be evaluated, behind one interface."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from foretell.length import LengthHistory
from foretell.length.adapted import EncoderModel
from foretell.length.conversation import LengthQuestion
from foretell.length.small import SmallModel, Weights, shipped
from foretell.model import LengthEstimate
from foretell.services.tagger.encoder import OnnxEncoder
from foretell.services.tagger.models import folder_of
from foretell.tools.length.dataset import Example


class Tagger(Protocol):
    """Estimates lengths, and may learn from answers as they come."""

    def estimate(self, examples: Sequence[Example]) -> list[LengthEstimate]:
        """One estimate for each example, made without its answer."""

    def observe(self, example: Example) -> None:
        """Learn from one answer."""


class HistoryTagger:
    """Estimates like the tagger service without a model."""

    def __init__(self) -> None:
        self._history = LengthHistory()

    def estimate(self, examples: Sequence[Example]) -> list[LengthEstimate]:
        """Estimates by model and prompt length."""
        asked = [(e.model_name, e.conversation) for e in examples]
        return [
            self._history.estimate(name, asks.prompt_tokens, asks.max_tokens, kind=asks.kind)
            for name, asks in asked
        ]

    def observe(self, example: Example) -> None:
        """Learn from one answer."""
        asked = example.conversation
        tokens = (asked.prompt_tokens, example.output_tokens)
        self._history.observe(example.model_name, *tokens, example.censored, asked.kind)


class EncoderTagger:
    """A trained length model, adapted to the answers that it observes, as in the service."""

    def __init__(self, encoder: OnnxEncoder | SmallModel) -> None:
        self._model = EncoderModel(encoder)

    def estimate(self, examples: Sequence[Example]) -> list[LengthEstimate]:
        """Estimates by the text of the conversations."""
        questions = [
            LengthQuestion(example.model_name, example.conversation) for example in examples
        ]
        read = list(zip(questions, self._model.infer(questions), strict=True))
        for example, (question, found) in zip(examples, read, strict=True):
            self._model.remember(_request_id(example), question, found)
        return self._model.estimates(read)

    def observe(self, example: Example) -> None:
        """Learn from the answer to a request that was estimated."""
        self._model.observe(
            _request_id(example), example.model_name, example.output_tokens, example.censored
        )


def _request_id(example: Example) -> str:
    return str(id(example))


def load_tagger(model: str, *, small: bool = False) -> Tagger:
    """The tagger of `model` as in the service: a folder, `shipped`, or `none` for history alone.

    `small`: the small model of that folder. Raises `ValueError` if the model cannot be used.
    """
    if model == "none":
        return HistoryTagger()
    try:
        if small:
            read = Weights.read(shipped() if model == "shipped" else Path(model))
            return EncoderTagger(SmallModel(read))
        return EncoderTagger(OnnxEncoder(folder_of(model)))
    except OSError as error:
        raise ValueError(f"{model} holds no length model: {error}") from error
