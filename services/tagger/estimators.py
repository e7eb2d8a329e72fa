"""Which source answers: the client's hint, the checkpoint, or history."""

import math

from foretell.length import PRIOR_TOKENS_PER_CHARACTER, LengthHistory, clip, from_hint
from foretell.model import LengthEstimate
from foretell.v1 import tagger_pb2
from services.tagger.batcher import MicroBatcher, Unanswered
from services.tagger.metrics import TaggerMetrics

_PATIENCE = 0.9  # share of a call's remaining time spent on the model; the rest is for the reply


class Estimators:
    """Answers every valid request; overload, deadlines and failures lead to history."""

    def __init__(
        self,
        history: LengthHistory,
        batcher: MicroBatcher | None,
        metrics: TaggerMetrics,
        max_prompt_chars: int,
    ) -> None:
        self._history = history
        self._batcher = batcher
        self._metrics = metrics
        self._max_prompt_chars = max_prompt_chars

    async def estimate(
        self, request: tagger_pb2.TagRequest, time_remaining_s: float | None
    ) -> LengthEstimate:
        """The estimate of the first source that has one, within `max_tokens`.

        `time_remaining_s` is the caller's patience; None is endless.
        """
        estimate = await self._first_estimate(request, time_remaining_s)
        self._metrics.requests.labels(estimate.source).inc()
        return clip(estimate, request.max_tokens)

    def observe(self, observation: tagger_pb2.Observation) -> None:
        """Teach the history one finished request."""
        self._history.observe(
            observation.model_name,
            observation.prompt_tokens,
            observation.output_tokens,
            observation.censored,
        )
        self._metrics.observations.inc()

    async def _first_estimate(
        self, request: tagger_pb2.TagRequest, time_remaining_s: float | None
    ) -> LengthEstimate:
        if request.hint_tokens > 0:
            return from_hint(request.hint_tokens)
        if self._batcher is not None and request.prompt:
            within_s = None if time_remaining_s is None else _PATIENCE * time_remaining_s
            try:
                tokens = await self._batcher.submit(
                    head_and_tail(request.prompt, self._max_prompt_chars), within_s
                )
                return LengthEstimate(expected_tokens=tokens, source="model")
            except Unanswered as missed:
                self._metrics.misses.labels(missed.reason).inc()
        prompt_tokens = request.prompt_tokens or math.ceil(
            len(request.prompt) * PRIOR_TOKENS_PER_CHARACTER
        )
        return self._history.estimate(request.model_name, prompt_tokens, request.max_tokens)


def head_and_tail(text: str, max_characters: int) -> str:
    """At most `max_characters` of `text`: instructions stand at either end, seldom between."""
    if len(text) <= max_characters:
        return text
    tail = max_characters // 2
    return text[: max_characters - tail] + text[len(text) - tail :]
