"""Which source answers: the client's hint, the model, or history."""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic

from foretell import wire
from foretell.length import PRIOR_TOKENS_PER_CHARACTER, LengthHistory, clip, from_hint
from foretell.length.conversation import LengthQuestion
from foretell.length.sampling import Sample
from foretell.model import LengthEstimate
from foretell.services.process.logs import about
from foretell.services.tagger.batcher import MicroBatcher, Unanswered
from foretell.services.tagger.metrics import TaggerMetrics
from foretell.services.tagger.models import Found, ServedLengthModel
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

_MOST_TOLD = 10_000
"""Most estimates kept until the lengths of their answers are known; older ones are dropped."""


class Answerer(Generic[Found]):
    """A model behind its batcher."""

    def __init__(
        self,
        model: ServedLengthModel[Found],
        batcher: MicroBatcher[LengthQuestion, Found],
        metrics: TaggerMetrics,
    ) -> None:
        self._model = model
        self._batcher = batcher
        self._metrics = metrics

    async def estimate(self, request_id: str, question: LengthQuestion) -> LengthEstimate | None:
        """Return the model's estimate; None if it does not read the request."""
        try:
            found = await self._batcher.submit(question)
        except Unanswered as missed:
            self._metrics.misses.labels(missed.reason).inc()
            return None
        self._model.remember(request_id, question, found)
        (estimate,) = self._model.estimates([(question, found)])
        return estimate

    def observe(self, observation: tagger_pb2.Observation) -> None:
        """Teach the model one finished request."""
        self._model.observe(
            observation.request_id,
            observation.model_name,
            observation.output_tokens,
            observation.censored,
        )


class TaggerEstimators(Generic[Found]):
    """Estimates every valid request; on overload and failures, from a less accurate source."""

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
        self._sample = Sample()
        self._given: OrderedDict[str, LengthEstimate] = OrderedDict()

    async def estimate(self, request: tagger_pb2.TagRequest) -> LengthEstimate:
        """The estimate of the best source, between `min_tokens` and `max_tokens`."""
        began_s = time.perf_counter()
        found = clip(await self._best(request), request.max_tokens, request.min_tokens)
        self._metrics.requests.labels(found.source).inc()
        self._metrics.latency.observe(time.perf_counter() - began_s)
        self._remember(request.request_id, found)
        logger.debug(
            "estimated %.0f tokens of output, by %s",
            found.expected_tokens,
            found.source,
            extra=about(request.x_request_id),
        )
        return found

    async def _best(self, request: tagger_pb2.TagRequest) -> LengthEstimate:
        if request.hint_tokens > 0:
            return from_hint(request.hint_tokens)
        read = None
        if self._answerer is not None and request.prompt:
            conversation = wire.conversation_from_proto(request, self._max_prompt_chars)
            question = LengthQuestion(request.model_name, conversation, request.tenant)
            read = await self._answerer.estimate(request.request_id, question)
        return read or self._by_history(request)

    def observe(self, observations: Sequence[tagger_pb2.Observation], now_s: float) -> None:
        """Teach the history all of these finished requests, and the model a sample of them.

        `now_s`: seconds of a monotonic clock.
        """
        for each in observations:
            self._history.observe(
                each.model_name,
                each.prompt_tokens,
                each.output_tokens,
                each.censored,
                wire.kind_from_proto(each.kind),
            )
            earlier = self._given.pop(each.request_id, None)
            if earlier is not None and each.output_tokens and not each.censored:
                error = earlier.expected_tokens / each.output_tokens - 1
                self._metrics.error.labels(earlier.source).observe(error)
        if self._answerer is not None:
            for each in self._sample.of(observations, now_s):
                self._answerer.observe(each)
        self._metrics.observations.inc(len(observations))

    def _remember(self, request_id: str, estimate: LengthEstimate) -> None:
        """Keep the estimate, to compare it with the answer's length if that becomes known."""
        if request_id:
            self._given[request_id] = estimate
        if len(self._given) > _MOST_TOLD:
            self._given.popitem(last=False)

    def _by_history(self, request: tagger_pb2.TagRequest) -> LengthEstimate:
        prompt_tokens = request.prompt_tokens or math.ceil(
            len(request.prompt) * PRIOR_TOKENS_PER_CHARACTER
        )
        return self._history.estimate(
            request.model_name,
            prompt_tokens,
            request.max_tokens,
            request.min_tokens,
            wire.kind_from_proto(request.kind),
        )
