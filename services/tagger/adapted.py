"""A trained length model, adapted online to what each serving model answers."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretell.length.adapt import Adapter
from foretell.length.bins import estimates
from foretell.length.conversation import Conversation
from foretell.model import LengthEstimate
from services.tagger.models import Question

REMEMBERED = 16_384
"""Requests whose distributions are kept until they have been answered."""


class Encoder(Protocol):
    """As `encoder.Encoder`."""

    def probabilities(
        self, conversations: Sequence[Conversation], models: Sequence[str]
    ) -> NDArray[np.float64]:
        """(n, `bins.BINS`)."""


class EncoderModel:
    """Implements `models.LengthModel`."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._adapter = Adapter()
        self._said: OrderedDict[str, tuple[NDArray[np.float64], str]] = OrderedDict()

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
        group = group_of(question.conversation)
        if request_id:
            self._said[request_id] = (found, group)
            if len(self._said) > REMEMBERED:
                self._said.popitem(last=False)
        adapted = self._adapter.adjust(question.model_name, found, group)
        return estimates(adapted[None], [question.conversation.max_tokens], "model")[0]

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        said = self._said.pop(request_id, None)
        if said is not None:
            found, group = said
            self._adapter.observe(model_name, found, output_tokens, censored, group)


def group_of(conversation: Conversation) -> str:
    """Requests with the same system prompt come from the same application: its digest, or ""."""
    if not conversation.system:
        return ""
    return blake2b(conversation.system.encode(errors="replace"), digest_size=8).hexdigest()
