"""Accounts for each attempt once it has ended: the sidecar's view, metrics, lessons, log."""

from math import isfinite

from foretell.cosched.deadlines import JobClass
from foretell.length.estimate import level_of
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.http.parsing import ParsedRequest
from foretell.services.scheduler.http.slo import Outcome, SloUnattainable
from foretell.services.scheduler.placing.placement import Placement
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.placing.stories import Ended
from foretell.services.scheduler.record.lessons import Lessons
from foretell.services.scheduler.record.recent import Latencies, Recent
from foretell.services.scheduler.record.request_log import RequestLog
from foretell.services.scheduler.record.result import Result
from foretell.services.scheduler.record.sample import Sample
from foretell.services.scheduler.record.series import AnswerSeries, answer_series
from foretell.telemetry import SchedulerMetrics, series

_CLOCK_SLACK_S = 0.1
_MAX_TOKENS = 2**31 - 1  # no context is as long: a sidecar that says more is not believed


class Recorder:
    """Compares what was predicted with what happened."""

    def __init__(
        self,
        metrics: SchedulerMetrics,
        lessons: Lessons,
        request_log: RequestLog,
        policy: str,
        predictors: Predictors,
        background: Background,
    ) -> None:
        self._lessons = lessons
        self._request_log = request_log
        self._policy = policy
        self._predictors = predictors
        self._background = background
        self.recent = Recent()
        self.sample = Sample()
        self._requests = series(metrics.requests)
        self._slo_requests = series(metrics.slo_requests)
        self._tenant_tokens = series(metrics.tenant_tokens)
        self._length_level = series(metrics.length_level)
        self._answers = answer_series(metrics)

    def count(self, model: str, placement: Placement | None, status: int) -> None:
        """Count a request that has ended; `placement` is that of its last attempt."""
        instance_id = placement.instance.config.instance_id if placement else ""
        policy = placement.policy if placement else ""
        self._requests(model, instance_id, policy, str(status)).inc()

    def record(
        self, request: ParsedRequest, request_id: str, placement: Placement, result: Result
    ) -> None:
        """Account for one attempt that has ended: at once, or when its sidecar has answered.

        Of a request that generates nothing, only what it took of its tenant's tokens counts.
        """
        if not request.endpoint.generates:
            _remember(placement, result, 0.0, 0.0)
            if request.grant is not None and result.prompt_tokens:
                request.grant.settle(result.prompt_tokens)
            return
        if not placement.instance.config.predictor:
            self._account(request, request_id, placement, result)
        else:
            self._background.spawn(self._completed(request, request_id, placement, result))

    async def _completed(
        self, request: ParsedRequest, request_id: str, placement: Placement, result: Result
    ) -> None:
        await self._complete(placement, result)
        self._account(request, request_id, placement, result)

    def _account(
        self, request: ParsedRequest, request_id: str, placement: Placement, result: Result
    ) -> None:
        if request.grant is not None and result.output_tokens:
            request.grant.settle(result.prompt_tokens + result.output_tokens)
        accepted = result.status < 400
        answered = accepted and result.finished
        ttft_s = _since(placement, result.first_byte_unix_s)
        e2e_s = _since(placement, result.ended_unix_s) if result.finished else 0.0
        _remember(placement, result, ttft_s, e2e_s)
        outcome = _outcome(request, placement, result) if answered else None
        if outcome is not None:
            self._slo_requests(request.model, placement.policy, outcome).inc()
        if answered:
            self._observe(request, placement, result, ttft_s, e2e_s)
        if accepted and (result.finished or result.abandoned):
            self._lessons.learn(request, placement, result)
        self._request_log.ended(
            request, request_id, placement, result, ttft_s=ttft_s, e2e_s=e2e_s, outcome=outcome
        )

    def record_rejection(
        self, request: ParsedRequest, request_id: str, refusal: SloUnattainable
    ) -> None:
        """Account for a request that was not admitted."""
        self._slo_requests(request.model, self._policy, "rejected").inc()
        self._request_log.rejected(request, request_id, self._policy, refusal)

    async def _complete(self, placement: Placement, result: Result) -> None:
        """Release the reservation; fill in what only the sidecar could see."""
        answered = result.first_byte_unix_s > 0 or (result.finished and result.status < 400)
        seen = await self._predictors.complete(
            placement.instance, placement.spec, answered=answered
        )
        if seen is None:
            return
        if _credible(placement, seen.ttft_s, result):
            _learn_answer_delay(placement, seen.ttft_s, result)
        if not result.output_tokens and 0 < seen.output_tokens < _MAX_TOKENS:
            # The last snapshot of a whole answer was taken before its last token was sampled.
            result.output_tokens = seen.output_tokens + int(result.finished)
        if not result.prompt_tokens and seen.prompt_tokens <= _MAX_TOKENS:
            result.prompt_tokens = seen.prompt_tokens
        if result.cached_tokens is None and seen.HasField("cached_tokens"):
            result.cached_tokens = seen.cached_tokens

    def _observe(
        self,
        request: ParsedRequest,
        placement: Placement,
        result: Result,
        ttft_s: float,
        e2e_s: float,
    ) -> None:
        """Count an answer; latencies only of one that no other engine had begun."""
        instance, job_class = placement.instance, request.job_class
        labels = request.model, instance.config.instance_id, placement.policy
        offline = job_class is JobClass.OFFLINE
        answers = self._answers(*labels, offline, instance.emulated)
        self._tenant_tokens(request.tenant).inc(result.prompt_tokens + result.output_tokens)
        _count_tokens(answers, placement, result)
        if result.continued:
            return
        if not offline:
            self.sample.add(placement, result, ttft_s, e2e_s)
        _observe_latencies(answers, placement, result, ttft_s, e2e_s)
        self._remember_latencies(placement, ttft_s, e2e_s)
        if result.output_tokens:
            self._observe_length(answers, request, placement, result)

    def _remember_latencies(self, placement: Placement, ttft_s: float, e2e_s: float) -> None:
        prediction = placement.prediction
        latencies = Latencies(ttft_s, 0.0, e2e_s, 0.0)
        if prediction is not None:
            latencies = Latencies(ttft_s, prediction.ttft_s, e2e_s, prediction.e2e_s)
            if not (isfinite(prediction.ttft_s) and isfinite(prediction.e2e_s)):
                return
        self.recent.add(placement.instance.config.instance_id, latencies)

    def _observe_length(
        self,
        series: AnswerSeries,
        request: ParsedRequest,
        placement: Placement,
        result: Result,
    ) -> None:
        spec = placement.spec
        expected = spec.length.expected_tokens * spec.sequences
        series.length_error(expected / result.output_tokens - 1)
        level = level_of(spec.length, result.output_tokens)
        if level is not None and spec.sequences == 1 and not result.truncated:
            self._length_level(request.model).observe(level)


def _count_tokens(series: AnswerSeries, placement: Placement, result: Result) -> None:
    series.prompt_tokens(result.prompt_tokens)
    series.output_tokens(result.output_tokens)
    if result.cached_tokens is None:
        return
    series.cached_tokens(result.cached_tokens)
    if placement.prediction is not None:
        series.foretold_cached_tokens(placement.prediction.cached_tokens)


def _observe_latencies(
    series: AnswerSeries, placement: Placement, result: Result, ttft_s: float, e2e_s: float
) -> None:
    """What was measured, and its error relative to what was predicted where both are known."""
    prediction = placement.prediction
    series.e2e(e2e_s)
    if prediction is not None and isfinite(prediction.e2e_s) and e2e_s > 0:
        series.e2e_error(prediction.e2e_s / e2e_s - 1)
    if not ttft_s:
        return
    series.ttft(ttft_s)
    if prediction is not None and isfinite(prediction.ttft_s):
        series.ttft_error(prediction.ttft_s / ttft_s - 1)
    tokens = result.output_tokens / placement.spec.sequences
    if tokens > 1:
        series.tpot((e2e_s - ttft_s) / (tokens - 1))


def _remember(placement: Placement, result: Result, ttft_s: float, e2e_s: float) -> None:
    """What became of an attempt, for whoever asks later."""
    if placement.chapter is not None:
        placement.chapter.ended = Ended(
            result.status,
            result.finished,
            result.broken,
            result.continued,
            ttft_s,
            e2e_s,
            result.prompt_tokens,
            result.output_tokens,
        )


def _learn_answer_delay(placement: Placement, engine_ttft_s: float, result: Result) -> None:
    """Learn from a stream how long its first token took from the engine to here.

    Where there was no stream, the learned delay tells when the first token would have come.
    """
    instance = placement.instance
    if result.first_byte_unix_s:
        instance.learn_answer_delay(_since(placement, result.first_byte_unix_s) - engine_ttft_s)
        return
    result.first_byte_unix_s = min(
        result.ended_unix_s, placement.decided_unix_s + engine_ttft_s + instance.answer_delay_s
    )


def _since(placement: Placement, unix_s: float) -> float:
    """Seconds from the placement to a stamp; 0 where the stamp is not known."""
    return max(0.0, unix_s - placement.decided_unix_s) if unix_s else 0.0


def _credible(placement: Placement, ttft_s: float, result: Result) -> bool:
    """Whether the TTFT that a sidecar saw can be this request's.

    The sidecar counts from the reservation, which may be a moment before the placement was done.
    """
    return 0 < ttft_s <= result.ended_unix_s - placement.decided_unix_s + _CLOCK_SLACK_S


def _outcome(request: ParsedRequest, placement: Placement, result: Result) -> Outcome | None:
    """Whether an answer was within its targets; None where it had none or too little is known."""
    if not request.terms.slo.given:
        return None
    tokens = result.output_tokens / placement.spec.sequences
    return request.terms.outcome(result.first_byte_unix_s, result.ended_unix_s, tokens)
