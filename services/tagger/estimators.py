"""Which source answers: the client's hint, the model, or history."""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from foretell import wire
from foretell.length import PRIOR_TOKENS_PER_CHARACTER, LengthHistory, clip, from_hint
from foretell.length.conversation import Question
from foretell.length.sampling import Sample
from foretell.model import LengthEstimate
from foretell.services.process.logs import about
from foretell.services.tagger.batcher import MicroBatcher, Unanswered
from foretell.services.tagger.metrics import TaggerMetrics
from foretell.services.tagger.models import Found, ServedLengthModel
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

_MOST_TOLD = 10_000
"""Latest estimates that wait for the lengths of their answers."""

Tell = Callable[[LengthEstimate], None]


@dataclass(slots=True)
class Asked:
    """One request before the models."""

    request_id: str
    question: Question
    tell: Tell
    without: Callable[[], LengthEstimate]
    """What is said where the model says nothing."""


class Answerer(Generic[Found]):
    """A model behind its batcher."""

    def __init__(
        self,
        model: ServedLengthModel[Found],
        batcher: MicroBatcher[Question, Found],
        metrics: TaggerMetrics,
    ) -> None:
        self._model = model
        self._batcher = batcher
        self._metrics = metrics
        self._asked: list[Asked] = []
        self._read: list[tuple[Asked, Found]] = []
        self._unread: list[Asked] = []

    def ask(self, asked: Asked) -> None:
        """`asked.tell` is called once, later. What comes in one turn of the loop goes together."""
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._take)
        self._asked.append(asked)

    def observe(self, observation: tagger_pb2.Observation) -> None:
        """Teach the model one finished request."""
        self._model.observe(
            observation.request_id,
            observation.model_name,
            observation.output_tokens,
            observation.censored,
        )

    def _take(self) -> None:
        asked, self._asked = self._asked, []
        for each in asked:
            reading = self._batcher.submit(each.question)
            if reading.done():
                self._sort(each, reading)
            else:
                reading.add_done_callback(partial(self._was_read, each))
        self._tell()

    def _was_read(self, asked: Asked, reading: asyncio.Future[Found]) -> None:
        if not self._read and not self._unread:
            asyncio.get_running_loop().call_soon(self._tell)
        self._sort(asked, reading)

    def _sort(self, asked: Asked, reading: asyncio.Future[Found]) -> None:
        missed = reading.exception()
        if isinstance(missed, Unanswered):
            self._metrics.misses.labels(missed.reason).inc()
            self._unread.append(asked)
        else:
            self._read.append((asked, reading.result()))

    def _tell(self) -> None:
        """Tell what was found, all that has gathered at once."""
        read, self._read = self._read, []
        unread, self._unread = self._unread, []
        for asked, found in read:
            self._model.remember(asked.request_id, asked.question, found)
        estimates = self._model.estimates([(asked.question, found) for asked, found in read])
        for (asked, _), estimate in zip(read, estimates, strict=True):
            asked.tell(estimate)
        for asked in unread:
            asked.tell(asked.without())


class TaggerEstimators(Generic[Found]):
    """Answers every valid request; overload and failures lead to lesser sources."""

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

    def ask(self, request: tagger_pb2.TagRequest, tell: Tell) -> None:
        """`tell` is called once with the estimate of the best source, between `min_tokens` and
        `max_tokens`."""
        began_s = time.perf_counter()

        def given(estimate: LengthEstimate) -> None:
            self._metrics.requests.labels(estimate.source).inc()
            self._metrics.latency.observe(time.perf_counter() - began_s)
            clipped = clip(estimate, request.max_tokens, request.min_tokens)
            self._remember(request.request_id, clipped)
            tell(clipped)
            logger.debug(
                "estimated %.0f tokens of output, by %s",
                clipped.expected_tokens,
                clipped.source,
                extra=about(request.x_request_id),
            )

        if request.hint_tokens > 0:
            given(from_hint(request.hint_tokens))
        elif self._answerer is None or not request.prompt:
            given(self._by_history(request))
        else:
            conversation = wire.conversation_from_proto(request, self._max_prompt_chars)
            self._answerer.ask(
                Asked(
                    request.request_id,
                    Question(request.model_name, conversation, request.tenant),
                    given,
                    partial(self._by_history, request),
                )
            )

    def observe(self, observations: Sequence[tagger_pb2.Observation], now_s: float) -> None:
        """Teach the history all of these finished requests, and the model as many as it needs.

        `now_s`: of a clock that never goes back.
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
        """The estimate is compared with the answer's length, should that come to be known."""
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
