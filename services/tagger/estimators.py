"""Which source answers: the client's hint, the model, or history."""

import math
from collections import OrderedDict
from dataclasses import replace
from hashlib import blake2b
from typing import Generic

from foretell import wire
from foretell.length import PRIOR_TOKENS_PER_CHARACTER, LengthHistory, clip, from_hint
from foretell.model import LengthEstimate
from foretell.v1 import tagger_pb2
from services.tagger.batcher import MicroBatcher, Unanswered
from services.tagger.metrics import TaggerMetrics
from services.tagger.models import Found, LengthModel, Question

_PATIENCE = 0.75  # share of a call's remaining time spent on the model; the rest is for the reply


class Recall(Generic[Found]):
    """What the model found in the latest `size` different requests."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[bytes, Found] = OrderedDict()

    @staticmethod
    def key(question: Question) -> bytes:
        """Equal for equal requests, whatever their tokens are estimated to be."""
        same = replace(question.conversation, prompt_tokens=0)
        text = f"{question.model_name}\n{same!r}"
        return blake2b(text.encode(errors="replace"), digest_size=16).digest()

    def get(self, key: bytes) -> Found | None:
        """None for one never seen, or too long ago."""
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key]

    def put(self, key: bytes, found: Found) -> None:
        """Remember."""
        self._found[key] = found
        if len(self._found) > self._size:
            self._found.popitem(last=False)


class Answerer(Generic[Found]):
    """A model behind its batcher and its memory."""

    def __init__(
        self,
        model: LengthModel[Found],
        batcher: MicroBatcher[Question, Found],
        metrics: TaggerMetrics,
        recalled: int,
    ) -> None:
        self._model = model
        self._batcher = batcher
        self._metrics = metrics
        self._recall: Recall[Found] = Recall(recalled)

    async def estimate(
        self, request_id: str, question: Question, within_s: float | None
    ) -> LengthEstimate:
        """Raises `Unanswered`."""
        key = Recall.key(question)
        found = self._recall.get(key)
        if found is None:
            found = await self._batcher.submit(question, within_s)
            self._recall.put(key, found)
        else:
            self._metrics.recalled.inc()
        return self._model.estimate(request_id, question, found)

    def observe(self, observation: tagger_pb2.Observation) -> None:
        """Teach the model one finished request."""
        self._model.observe(
            observation.request_id,
            observation.model_name,
            observation.output_tokens,
            observation.censored,
        )


class Estimators(Generic[Found]):
    """Answers every valid request; overload, deadlines and failures lead to history."""

    def __init__(
        self,
        history: LengthHistory,
        answerer: Answerer[Found] | None,
        metrics: TaggerMetrics,
        max_prompt_chars: int,
    ) -> None:
        self._history = history
        self._answerer = answerer
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
        """Teach the history and the model one finished request."""
        self._history.observe(
            observation.model_name,
            observation.prompt_tokens,
            observation.output_tokens,
            observation.censored,
        )
        if self._answerer is not None:
            self._answerer.observe(observation)
        self._metrics.observations.inc()

    async def _first_estimate(
        self, request: tagger_pb2.TagRequest, time_remaining_s: float | None
    ) -> LengthEstimate:
        if request.hint_tokens > 0:
            return from_hint(request.hint_tokens)
        if self._answerer is not None and request.prompt:
            within_s = None if time_remaining_s is None else _PATIENCE * time_remaining_s
            conversation = wire.conversation_from_proto(request, self._max_prompt_chars)
            question = Question(request.model_name, conversation, request.tenant)
            try:
                return await self._answerer.estimate(request.request_id, question, within_s)
            except Unanswered as missed:
                self._metrics.misses.labels(missed.reason).inc()
        prompt_tokens = request.prompt_tokens or math.ceil(
            len(request.prompt) * PRIOR_TOKENS_PER_CHARACTER
        )
        return self._history.estimate(request.model_name, prompt_tokens, request.max_tokens)
