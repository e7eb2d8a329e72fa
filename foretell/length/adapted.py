"""A trained length model, adapted online to what each serving model answers."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretell.length.adapt import Adapter
from foretell.length.bins import BINS, estimates
from foretell.length.conversation import Conversation, Kind, LengthQuestion
from foretell.model import LengthEstimate

Floats = NDArray[np.float64]

REMEMBERED = 16_384
"""Requests whose distributions are kept until they have been answered."""


class TextEncoder(Protocol):
    """Reads conversations: the tagger's encoder, or `small.SmallModel`."""

    def read(
        self, conversations: Sequence[Conversation], models: Sequence[str]
    ) -> tuple[Floats, Floats]:
        """Probabilities (n, `bins.BINS`), standardised features (n, features)."""


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """The encoder's output for one request, before it is adapted to the serving model."""

    probabilities: Floats
    """(`bins.BINS`,)."""
    features: Floats
    """(features,)."""


class EncoderModel:
    """An encoder, and what was learned from each serving model's answers."""

    def __init__(self, encoder: TextEncoder, source: str = "model") -> None:
        """`source` is the `LengthEstimate.source` of its estimates."""
        self._encoder = encoder
        self._source = source
        self._adapter = Adapter()
        self._said: OrderedDict[str, tuple[EncoderOutput, str, Kind]] = OrderedDict()

    def infer(self, questions: Sequence[LengthQuestion]) -> Sequence[EncoderOutput]:
        """The encoder's output for a batch, in its order."""
        rows = self._encoder.read(
            [question.conversation for question in questions],
            [question.model_name for question in questions],
        )
        return [EncoderOutput(*row) for row in zip(*rows, strict=True)]

    def estimates(
        self, read: Sequence[tuple[LengthQuestion, EncoderOutput]]
    ) -> list[LengthEstimate]:
        """Current estimates for requests that were read, within their token bounds."""
        adapted = np.empty((len(read), BINS))
        alike: dict[tuple[str, str, Kind], list[int]] = {}
        for row, (question, _) in enumerate(read):
            key = question.model_name, group_of(question), question.conversation.kind
            alike.setdefault(key, []).append(row)
        for (model_name, group, kind), rows in alike.items():
            adapted[rows] = self._adapter.adjust(
                model_name,
                np.array([read[row][1].probabilities for row in rows]),
                group,
                np.array([read[row][1].features for row in rows]),
                kind,
            )
        asked = [question.conversation for question, _ in read]
        bounds = [(each.min_tokens, each.max_tokens) for each in asked]
        return estimates(adapted, bounds, self._source)

    def remember(self, request_id: str, question: LengthQuestion, found: EncoderOutput) -> None:
        """Remember a request whose answer will be given to `observe`."""
        if request_id:
            self._said[request_id] = (found, group_of(question), question.conversation.kind)
            if len(self._said) > REMEMBERED:
                self._said.popitem(last=False)

    def observe(self, request_id: str, model_name: str, output_tokens: int, censored: bool) -> None:
        """Learn from the answer to a request, if it is remembered."""
        said = self._said.pop(request_id, None)
        if said is not None:
            found, group, kind = said
            self._adapter.observe(
                model_name,
                found.probabilities,
                output_tokens,
                censored,
                group,
                found.features,
                kind,
            )


def group_of(question: LengthQuestion) -> str:
    """The application that a request belongs to: its system prompt or else tenant; "" is none."""
    system, tenant = question.conversation.system, question.tenant
    if not system:
        return tenant and f"tenant {tenant}"
    return blake2b(system.encode(errors="replace"), digest_size=8).hexdigest()
