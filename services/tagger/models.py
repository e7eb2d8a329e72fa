"""The models behind the batcher, among them any regressor of one number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from foretell.length.conversation import Conversation, LengthQuestion, head_and_tail
from foretell.model import LengthEstimate

Found = TypeVar("Found")
_SHIPPED = Path(__file__).with_name("shipped")


def folder_of(model: str) -> Path:
    """Return the folder of the length model that a setting names: `shipped`, or a path."""
    return _SHIPPED if model == "shipped" else Path(model)


class ServedLengthModel(Protocol[Found]):
    """Reads requests, and makes estimates from what it found in them."""

    def infer(self, questions: Sequence[LengthQuestion]) -> Sequence[Found]:
        """Read a batch; results in its order. Called from one thread at a time. May raise."""

    def estimates(self, read: Sequence[tuple[LengthQuestion, Found]]) -> list[LengthEstimate]:
        """Return the present estimates of requests; quick. The caller may apply `max_tokens`."""

    def remember(self, request_id: str, question: LengthQuestion, found: Found) -> None:
        """Keep a request until its answer is passed to `observe`; quick."""

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        """Learn from the answer to a remembered request."""


class Regressor(Protocol):
    """A text model that predicts one number."""

    def predict(self, prompts: Sequence[str]) -> list[float]:
        """Return the expected output tokens of each prompt, in order. May raise."""


class RegressorModel:
    """Any `Regressor`; it reads the whole conversation as one text, and learns nothing."""

    def __init__(self, regressor: Regressor, most_characters: int) -> None:
        self._regressor = regressor
        self._most_characters = most_characters

    def infer(self, questions: Sequence[LengthQuestion]) -> Sequence[float]:
        return self._regressor.predict(
            [
                head_and_tail(_whole_text(question.conversation), self._most_characters)
                for question in questions
            ]
        )

    def estimates(self, read: Sequence[tuple[LengthQuestion, float]]) -> list[LengthEstimate]:
        return [LengthEstimate(expected_tokens=found, source="model") for _, found in read]

    def remember(self, request_id: str, question: LengthQuestion, found: float) -> None:
        return

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        return


def _whole_text(conversation: Conversation) -> str:
    texts = [conversation.system]
    for exchange in conversation.earlier:
        texts += [exchange.prompt, exchange.answer]
    return "\n".join(filter(None, [*texts, conversation.prompt]))
