"""What stands behind the batcher; a regressor of one figure is one such model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from foretell.length.conversation import Conversation, Question, head_and_tail
from foretell.model import LengthEstimate

Found = TypeVar("Found")
_SHIPPED = Path(__file__).with_name("shipped")


def folder_of(model: str) -> Path:
    """Where the length model lies that a setting names: `shipped`, or a folder."""
    return _SHIPPED if model == "shipped" else Path(model)


class ServedLengthModel(Protocol[Found]):
    """Reads requests, and makes estimates of what it has found in them."""

    def infer(self, questions: Sequence[Question]) -> Sequence[Found]:
        """What a batch says, in its order; called from one thread at a time. May raise."""

    def estimates(self, read: Sequence[tuple[Question, Found]]) -> list[LengthEstimate]:
        """The estimates of some requests, as of now; quick. The caller may apply `max_tokens`."""

    def remember(self, request_id: str, question: Question, found: Found) -> None:
        """A request is under way, and its answer will be given to `observe`; quick."""

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        """Learn from the answer to a request that is remembered."""


class Regressor(Protocol):
    """A model of text that gives one figure."""

    def predict(self, prompts: Sequence[str]) -> list[float]:
        """Output tokens expected of each prompt, in order. May raise."""


class RegressorModel:
    """Any `Regressor`; it reads the whole conversation as one text, and learns nothing."""

    def __init__(self, regressor: Regressor, most_characters: int) -> None:
        self._regressor = regressor
        self._most_characters = most_characters

    def infer(self, questions: Sequence[Question]) -> Sequence[float]:
        return self._regressor.predict(
            [
                head_and_tail(_whole_text(question.conversation), self._most_characters)
                for question in questions
            ]
        )

    def estimates(self, read: Sequence[tuple[Question, float]]) -> list[LengthEstimate]:
        return [LengthEstimate(expected_tokens=found, source="model") for _, found in read]

    def remember(self, request_id: str, question: Question, found: float) -> None:
        return

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        return


def _whole_text(conversation: Conversation) -> str:
    texts = [conversation.system]
    for exchange in conversation.earlier:
        texts += [exchange.prompt, exchange.answer]
    return "\n".join(filter(None, [*texts, conversation.prompt]))
