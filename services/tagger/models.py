"""What may stand behind the batcher: a trained length model, or a regressor of one figure."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretell.length.adapt import Adapter
from foretell.length.bins import estimates
from foretell.length.conversation import Conversation, head_and_tail
from foretell.model import LengthEstimate

Found = TypeVar("Found")

REMEMBERED = 16_384
"""Requests whose distributions are kept until they have been answered."""


@dataclass(frozen=True, slots=True)
class Question:
    """Of how many tokens will the answer of `model_name` be?"""

    model_name: str
    conversation: Conversation


class LengthModel(Protocol[Found]):
    """Reads requests, and makes estimates of what it has found in them."""

    def infer(self, questions: Sequence[Question]) -> Sequence[Found]:
        """What a batch says, in its order; called from one worker thread at a time. May raise."""

    def estimate(self, request_id: str, question: Question, found: Found) -> LengthEstimate:
        """The estimate for one request, as of now; quick. The caller may apply `max_tokens`."""

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        """Learn from one answer; quick."""


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

    def estimate(self, request_id: str, question: Question, found: float) -> LengthEstimate:
        return LengthEstimate(expected_tokens=found, source="model")

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        return


class Encoder(Protocol):
    """As `encoder.Encoder`."""

    def probabilities(
        self, conversations: Sequence[Conversation], models: Sequence[str]
    ) -> NDArray[np.float64]:
        """(n, `bins.BINS`)."""


class EncoderModel:
    """A trained length model, adapted online to what each serving model answers."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._adapter = Adapter()
        self._said: OrderedDict[str, NDArray[np.float64]] = OrderedDict()

    def infer(self, questions: Sequence[Question]) -> Sequence[NDArray[np.float64]]:
        return list(
            self._encoder.probabilities(
                [question.conversation for question in questions],
                [question.model_name for question in questions],
            )
        )

    def estimate(
        self, request_id: str, question: Question, found: NDArray[np.float64]
    ) -> LengthEstimate:
        if request_id:
            self._said[request_id] = found
            if len(self._said) > REMEMBERED:
                self._said.popitem(last=False)
        adapted = self._adapter.adjust(question.model_name, found)
        return estimates(adapted[None], [question.conversation.max_tokens], "model")[0]

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        said = self._said.pop(request_id, None)
        if said is not None:
            self._adapter.observe(model_name, said, output_tokens, censored)


def _whole_text(conversation: Conversation) -> str:
    texts = [conversation.system]
    for exchange in conversation.earlier:
        texts += [exchange.prompt, exchange.answer]
    return "\n".join(filter(None, [*texts, conversation.prompt]))
