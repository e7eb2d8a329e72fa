"""Records each attempt once it has ended: the predictor's view, metrics, feedback, log."""

import asyncio
from contextlib import suppress
from math import isfinite

import grpc

from foretell import wire
from foretell.engine.announced import ObservedLatency
from foretell.length.estimate import level_of
from foretell.openai.parsing import ApiRequest
from foretell.openai.slo import Outcome, SloUnattainable
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.placing.estimators import Estimators
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.record.request_log import RequestLog
from foretell.tenants.quota import Grant
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

_OBSERVE_DEADLINE_S = 5.0  # no client waits for it
_GATHER_S = 1.0
"""Longer than the delay until the tagger is asked. It learns nothing from requests that it does not
know, and short answers must not be among those more often than others."""
_MOST_TOGETHER = 4096  # the most that a tagger takes in one call


class EstimatorFeedback:
    """Teaches the estimators that placement reads, and the tagger if there is one."""

    def __init__(
        self,
        estimators: Estimators,
        tagger: tagger_pb2_grpc.TaggerStub | None,
        background: Background,
    ) -> None:
        self._estimators = estimators
        self._tagger = tagger
        self._background = background
        self._waiting: list[tuple[Attempt, tagger_pb2.Observation]] = []

    def learn(self, request: ApiRequest, attempt: Attempt) -> None:
        """Learn from an answer that was accepted by its engine and is whole or abandoned."""
        spec = attempt.spec
        for kind, prediction in attempt.announced_by.items() if not attempt.continued else ():
            self._estimators.announced.observe(kind, prediction, *_seen(request, attempt))
        if spec.sequences != 1:
            return  # usage sums over sequences: it does not tell the length of one answer
        if attempt.prompt_tokens and not request.token_ids:
            self._estimators.prompt_tokens.observe(
                request.model, request.characters, len(request.messages), attempt.prompt_tokens
            )
        if spec.turn.prompt and attempt.finished and attempt.prompt_tokens:
            spoken, tokens = self._estimators.conversation_tokens, attempt.prompt_tokens
            spoken.check(request.model, spec.turn.before, tokens)
            spoken.note(spec.turn.prompt, tokens + attempt.output_tokens)
        if request.ignore_eos or attempt.output_tokens <= request.min_tokens:
            return  # the length is the client's, not the model's
        prompt_tokens = attempt.prompt_tokens or spec.prompt_tokens
        censored = (
            not attempt.finished
            or attempt.truncated
            or 0 < request.max_tokens <= attempt.output_tokens
        )
        self._estimators.lengths.observe(
            attempt.key, request, prompt_tokens, attempt.output_tokens, censored
        )
        if self._tagger is None:
            return
        observation = tagger_pb2.Observation(
            model_name=request.model,
            prompt_tokens=prompt_tokens,
            output_tokens=attempt.output_tokens,
            censored=censored,
            request_id=attempt.key,
            kind=wire.kind_to_proto(request.kind),
        )
        self._waiting.append((attempt, observation))
        if len(self._waiting) == 1:
            self._background.spawn(self._teach(self._tagger))

    async def _teach(self, tagger: tagger_pb2_grpc.TaggerStub) -> None:
        await asyncio.sleep(_GATHER_S)
        waiting, self._waiting = self._waiting, []
        observations = [each for attempt, each in waiting if attempt.tagged]
        message = tagger_pb2.ObserveRequest(observations=observations[-_MOST_TOGETHER:])
        if not observations:
            return
        with suppress(grpc.aio.AioRpcError):  # the next feedback will do as well
            await tagger.Observe(message, timeout=_OBSERVE_DEADLINE_S)


def _seen(request: ApiRequest, attempt: Attempt) -> tuple[ObservedLatency | None, ObservedLatency]:
    """TTFT, None if not known well, and e2e latency, as far as the client waited for them."""
    e2e = ObservedLatency(attempt.since_placed_s(attempt.ended_unix_s), whole=attempt.answered)
    if not request.stream or (attempt.answered and not attempt.ttft_s):
        return None, e2e
    return ObservedLatency(attempt.ttft_s) if attempt.ttft_s else e2e, e2e


_CLOCK_SLACK_S = 0.1
_MAX_TOKENS = 2**31 - 1  # no context is as long: a predictor that says more is not believed


class Recorder:
    """Compares what was predicted with what happened."""

    def __init__(
        self,
        metrics: SchedulerMetrics,
        feedback: EstimatorFeedback,
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
        self._metrics = metrics

    def count(self, status: int, model: str = "", attempt: Attempt | None = None) -> None:
        """Count a request that has ended; `attempt` is its last one."""
        instance_id, policy = (attempt.instance_id, attempt.policy) if attempt else ("", "")
        self._metrics.requests.labels(model, instance_id, policy, str(status)).inc()

    def count_failure(self, instance_id: str, reason: str, *, in_mid_answer: bool) -> None:
        metrics = self._metrics
        counter = metrics.continuations if in_mid_answer else metrics.retries
        counter.labels(instance_id, reason).inc()

    def record(self, request: ApiRequest, grant: Grant | None, attempt: Attempt) -> None:
        """Record an attempt that has ended: at once, or when its predictor has answered. If the
        request generates nothing, only its use of the tenant's tokens is settled."""
        if not request.endpoint.generates:
            attempt.settled = True
            if grant is not None and attempt.prompt_tokens:
                grant.settle(attempt.prompt_tokens)
            return
        if not attempt.instance.config.predictor:
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
        outcome: Outcome | None = None
        if attempt.answered:
            stamps = attempt.first_byte_unix_s, attempt.ended_unix_s
            outcome = request.terms.outcome(*stamps, attempt.tokens_each)
            self._observe(request, attempt)
        if outcome is not None:
            attempt.met_targets = outcome == "met"
            self._metrics.slo_requests.labels(request.model, attempt.policy, outcome).inc()
        if attempt.status < 400 and (attempt.finished or attempt.abandoned):
            self._feedback.learn(request, attempt)
        self._request_log.ended(request, attempt, outcome)

    def record_rejection(self, request: ApiRequest, refusal: SloUnattainable) -> None:
        """Record a request that was refused because its targets cannot be met."""
        self._metrics.slo_requests.labels(request.model, self._policy, "rejected").inc()
        self._request_log.rejected(request, self._policy, refusal)

    async def _complete(self, attempt: Attempt) -> None:
        """Release the reservation; fill in what only the predictor could see."""
        answered = attempt.first_byte_unix_s > 0 or attempt.answered
        seen = await self._predictors.complete(
            attempt.instance,
            attempt.spec,
            answered=answered,
            output_tokens=attempt.output_tokens,
        )
        if seen is None:
            return
        # `seen` counts from the reservation, which may be a moment before the placement was done.
        if 0 < seen.ttft_s <= attempt.ended_unix_s - attempt.placed_unix_s + _CLOCK_SLACK_S:
            _learn_answer_delay(attempt, seen.ttft_s)
        if not attempt.output_tokens and 0 < seen.output_tokens < _MAX_TOKENS:
            # The last snapshot of a whole answer was taken before its last token was sampled.
            attempt.output_tokens = seen.output_tokens + int(attempt.finished)
        if not attempt.prompt_tokens and seen.prompt_tokens <= _MAX_TOKENS:
            attempt.prompt_tokens = seen.prompt_tokens
        if attempt.cached_tokens is None and seen.HasField("cached_tokens"):
            attempt.cached_tokens = seen.cached_tokens

    def _observe(self, request: ApiRequest, attempt: Attempt) -> None:
        """Count an answer; latencies only if no other engine had begun it."""
        metrics, prediction, spec = self._metrics, attempt.prediction, attempt.spec
        ttft_s, e2e_s, tokens = attempt.ttft_s, attempt.e2e_s, attempt.tokens_each
        instance_id, job_class = attempt.instance_id, request.job_class.value
        metrics.tenant_tokens.labels(request.tenant).inc(
            attempt.prompt_tokens + attempt.output_tokens
        )
        metrics.prompt_tokens.labels(instance_id, job_class).inc(attempt.prompt_tokens)
        metrics.output_tokens.labels(instance_id, job_class).inc(attempt.output_tokens)
        # Also where nothing is known: a series without samples looks like a broken query.
        cached = metrics.cached_tokens.labels(instance_id, job_class)
        predicted = metrics.predicted_cached_tokens.labels(instance_id, job_class)
        if attempt.cached_tokens is not None:
            cached.inc(attempt.cached_tokens)
            predicted.inc(prediction.cached_tokens if prediction else 0)
        if attempt.continued:
            return
        if (judged := prediction or attempt.withheld) is not None:
            shown_s = ttft_s if request.stream else 0.0  # otherwise the twin has estimated it
            self._predictors.judge(attempt.instance, judged, shown_s, e2e_s, tokens)
        labels = request.model, instance_id, attempt.policy, job_class
        errors = request.model, instance_id, attempt.instance.kind
        metrics.e2e.labels(*labels).observe(e2e_s)
        if attempt.announced is not None and e2e_s > 0:
            metrics.announced_p90.labels("e2e", str(e2e_s <= attempt.announced.e2e.p90_s)).inc()
        if prediction is not None and isfinite(prediction.e2e_s) and e2e_s > 0:
            metrics.e2e_error.labels(*errors).observe(prediction.e2e_s / e2e_s - 1)
        if ttft_s:
            metrics.ttft.labels(*labels).observe(ttft_s)
            if attempt.announced is not None and request.stream:
                metrics.announced_p90.labels(
                    "ttft", str(ttft_s <= attempt.announced.ttft.p90_s)
                ).inc()
            if prediction is not None and isfinite(prediction.ttft_s):
                metrics.ttft_error.labels(*errors).observe(prediction.ttft_s / ttft_s - 1)
            if tokens > 1:
                metrics.tpot.labels(*labels).observe((e2e_s - ttft_s) / (tokens - 1))
        if attempt.output_tokens:
            metrics.length_error.labels(*errors).observe(spec.length.expected_tokens / tokens - 1)
            level = level_of(spec.length, attempt.output_tokens)
            if level is not None and spec.sequences == 1 and not attempt.truncated:
                metrics.length_level.labels(request.model).observe(level)


def _learn_answer_delay(attempt: Attempt, engine_ttft_s: float) -> None:
    """Learn from a stream how long its first token took from the engine to here. Without a stream,
    estimate from the learned delay when the first token would have come."""
    instance = attempt.instance
    if attempt.first_byte_unix_s:
        instance.learn_answer_delay(attempt.ttft_s - engine_ttft_s)
        return
    attempt.first_byte_unix_s = min(
        attempt.ended_unix_s, attempt.placed_unix_s + engine_ttft_s + instance.answer_delay_s
    )
