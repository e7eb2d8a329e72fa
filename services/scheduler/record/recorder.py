"""Accounts for each attempt once it has ended: the predictor's view, metrics, feedback, log."""

from math import isfinite

from foretell.cosched.deadlines import JobClass
from foretell.length.estimate import level_of
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.http.parsing import ApiRequest
from foretell.services.scheduler.http.quota import Grant
from foretell.services.scheduler.http.slo import Outcome, SloUnattainable
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.record.feedback import Feedback
from foretell.services.scheduler.record.recent import Latencies, Recent
from foretell.services.scheduler.record.request_log import RequestLog
from foretell.services.scheduler.record.sample import Sample
from foretell.services.scheduler.record.series import AnswerSeries, answer_series
from foretell.telemetry import SchedulerMetrics, series

_CLOCK_SLACK_S = 0.1
_MAX_TOKENS = 2**31 - 1  # no context is as long: a predictor that says more is not believed


class Recorder:
    """Compares what was predicted with what happened."""

    def __init__(
        self,
        metrics: SchedulerMetrics,
        feedback: Feedback,
        request_log: RequestLog,
        policy: str,
        predictors: Predictors,
        background: Background,
    ) -> None:
        self._feedback = feedback
        self._request_log = request_log
        self._policy = policy
        self._predictors = predictors
        self._background = background
        self.recent = Recent()
        self.sample = Sample()
        self._metrics = metrics
        self._requests = series(metrics.requests)
        self._slo_requests = series(metrics.slo_requests)
        self._tenant_tokens = series(metrics.tenant_tokens)
        self._length_level = series(metrics.length_level)
        self._answers = answer_series(metrics)

    def count(self, status: int, model: str = "", attempt: Attempt | None = None) -> None:
        """Count a request that has ended; `attempt` is its last one."""
        instance_id, policy = (attempt.instance_id, attempt.policy) if attempt else ("", "")
        self._requests(model, instance_id, policy, str(status)).inc()

    def count_failure(self, instance_id: str, reason: str, *, in_mid_answer: bool) -> None:
        """Count an attempt that has failed, by its engine's fault."""
        metrics = self._metrics
        counter = metrics.continuations if in_mid_answer else metrics.retries
        counter.labels(instance_id, reason).inc()

    def record(self, request: ApiRequest, grant: Grant | None, attempt: Attempt) -> None:
        """Account for one attempt that has ended: at once, or when its predictor has answered.

        Of a request that generates nothing, only what it took of its tenant's tokens counts.
        """
        if not request.endpoint.generates:
            attempt.settled = True
            if grant is not None and attempt.prompt_tokens:
                grant.settle(attempt.prompt_tokens)
            return
        if attempt.instance.stub is None:
            self._account(request, grant, attempt)
        else:
            self._background.spawn(self._completed(request, grant, attempt))

    async def _completed(self, request: ApiRequest, grant: Grant | None, attempt: Attempt) -> None:
        await self._complete(attempt)
        self._account(request, grant, attempt)

    def _account(self, request: ApiRequest, grant: Grant | None, attempt: Attempt) -> None:
        attempt.settled = True
        if grant is not None and attempt.output_tokens:
            grant.settle(attempt.prompt_tokens + attempt.output_tokens)
        outcome = _outcome(request, attempt) if attempt.answered else None
        if outcome is not None:
            self._slo_requests(request.model, attempt.policy, outcome).inc()
        if attempt.answered:
            self._observe(request, attempt)
        if attempt.status < 400 and (attempt.finished or attempt.abandoned):
            self._feedback.learn(request, attempt)
        self._request_log.ended(request, attempt, outcome)

    def record_rejection(self, request: ApiRequest, refusal: SloUnattainable) -> None:
        """Account for a request that was not admitted."""
        self._slo_requests(request.model, self._policy, "rejected").inc()
        self._request_log.rejected(request, self._policy, refusal)

    async def _complete(self, attempt: Attempt) -> None:
        """Release the reservation; fill in what only the predictor could see."""
        answered = attempt.first_byte_unix_s > 0 or attempt.answered
        seen = await self._predictors.complete(attempt.instance, attempt.spec, answered=answered)
        if seen is None:
            return
        if _credible(attempt, seen.ttft_s):
            _learn_answer_delay(attempt, seen.ttft_s)
        if not attempt.output_tokens and 0 < seen.output_tokens < _MAX_TOKENS:
            # The last snapshot of a whole answer was taken before its last token was sampled.
            attempt.output_tokens = seen.output_tokens + int(attempt.finished)
        if not attempt.prompt_tokens and seen.prompt_tokens <= _MAX_TOKENS:
            attempt.prompt_tokens = seen.prompt_tokens
        if attempt.cached_tokens is None and seen.HasField("cached_tokens"):
            attempt.cached_tokens = seen.cached_tokens

    def _observe(self, request: ApiRequest, attempt: Attempt) -> None:
        """Count an answer; latencies only of one that no other engine had begun."""
        offline = request.job_class is JobClass.OFFLINE
        labels = request.model, attempt.instance_id, attempt.policy
        answers = self._answers(*labels, offline, attempt.instance.emulated)
        self._tenant_tokens(request.tenant).inc(attempt.prompt_tokens + attempt.output_tokens)
        _count_tokens(answers, attempt)
        if attempt.continued:
            return
        if not offline:
            self.sample.add(attempt)
        _observe_latencies(answers, attempt)
        self._remember_latencies(attempt)
        if attempt.output_tokens:
            self._observe_length(answers, request, attempt)

    def _remember_latencies(self, attempt: Attempt) -> None:
        prediction = attempt.prediction
        predicted = (prediction.ttft_s, prediction.e2e_s) if prediction else (0.0, 0.0)
        if all(map(isfinite, predicted)):
            latencies = Latencies(attempt.ttft_s, predicted[0], attempt.e2e_s, predicted[1])
            self.recent.add(attempt.instance_id, latencies)

    def _observe_length(self, answers: AnswerSeries, request: ApiRequest, attempt: Attempt) -> None:
        spec = attempt.spec
        answers.length_error(spec.length.expected_tokens / attempt.tokens_each - 1)
        level = level_of(spec.length, attempt.output_tokens)
        if level is not None and spec.sequences == 1 and not attempt.truncated:
            self._length_level(request.model).observe(level)


def _count_tokens(answers: AnswerSeries, attempt: Attempt) -> None:
    answers.prompt_tokens(attempt.prompt_tokens)
    answers.output_tokens(attempt.output_tokens)
    if attempt.cached_tokens is None:
        return
    answers.cached_tokens(attempt.cached_tokens)
    if attempt.prediction is not None:
        answers.foretold_cached_tokens(attempt.prediction.cached_tokens)


def _observe_latencies(answers: AnswerSeries, attempt: Attempt) -> None:
    """What was measured, and its error relative to what was predicted where both are known."""
    prediction, ttft_s, e2e_s = attempt.prediction, attempt.ttft_s, attempt.e2e_s
    answers.e2e(e2e_s)
    if prediction is not None and isfinite(prediction.e2e_s) and e2e_s > 0:
        answers.e2e_error(prediction.e2e_s / e2e_s - 1)
    if not ttft_s:
        return
    answers.ttft(ttft_s)
    if prediction is not None and isfinite(prediction.ttft_s):
        answers.ttft_error(prediction.ttft_s / ttft_s - 1)
    if attempt.tokens_each > 1:
        answers.tpot((e2e_s - ttft_s) / (attempt.tokens_each - 1))


def _learn_answer_delay(attempt: Attempt, engine_ttft_s: float) -> None:
    """Learn from a stream how long its first token took from the engine to here.

    Where there was no stream, the learned delay tells when the first token would have come.
    """
    instance = attempt.instance
    if attempt.first_byte_unix_s:
        instance.learn_answer_delay(attempt.ttft_s - engine_ttft_s)
        return
    attempt.first_byte_unix_s = min(
        attempt.ended_unix_s, attempt.placed_unix_s + engine_ttft_s + instance.answer_delay_s
    )


def _credible(attempt: Attempt, ttft_s: float) -> bool:
    """Whether the TTFT that a predictor saw can be this request's.

    It counts from the reservation, which may be a moment before the placement was done.
    """
    return 0 < ttft_s <= attempt.ended_unix_s - attempt.placed_unix_s + _CLOCK_SLACK_S


def _outcome(request: ApiRequest, attempt: Attempt) -> Outcome | None:
    """Whether an answer was within its targets; None where it had none or too little is known."""
    stamps = attempt.first_byte_unix_s, attempt.ended_unix_s
    return request.terms.outcome(*stamps, attempt.tokens_each)
