"""What became of a request: predicted against actual, for metrics, the log and the learners."""

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from math import isfinite
from pathlib import Path

from foretell.telemetry import SchedulerMetrics
from foretell.v1 import predictor_pb2, tagger_pb2, tagger_pb2_grpc
from services.scheduler.background import Background
from services.scheduler.http.parsing import ParsedRequest
from services.scheduler.http.slo import Outcome, SloUnattainable, Terms
from services.scheduler.placing.peers import NoAnswer, answer_of
from services.scheduler.placing.placement import Placement, Placer

_COMPLETE_DEADLINE_S = 5.0  # nobody waits for it
_CLOCK_SLACK_S = 0.1
_LESSON_PAUSE_S = 0.2
_MAX_LESSONS = 4096  # the most that a tagger takes in one call
_MAX_TOKENS = 2**31 - 1  # no context is as long: a sidecar that says more is not believed


@dataclass(slots=True)
class Result:
    """What the relay saw; stamps are unix seconds, 0 where it did not happen."""

    status: int = 0
    first_byte_unix_s: float = 0.0
    """Of a stream. Without one, an estimate from what the sidecar saw."""
    ended_unix_s: float = 0.0
    finished: bool = False
    """The whole answer was relayed."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    """Of the prompt, as the engine says in its usage, else as the sidecar saw it, if it did."""
    truncated: bool = False
    """Ended by `max_tokens`, as far as the relay can tell."""
    abandoned: bool = False
    """The client left, or the engine died in mid-answer: no attempt follows."""


class Recorder:
    """Compares predictions with what happened, and teaches tagger and estimators."""

    def __init__(
        self,
        metrics: SchedulerMetrics,
        placer: Placer,
        tagger: tagger_pb2_grpc.TaggerStub | None,
        background: Background,
        *,
        log_path: str,
        log_max_bytes: int,
    ) -> None:
        self._metrics = metrics
        self._placer = placer
        self._tagger = tagger
        self._background = background
        self._lessons: list[tagger_pb2.Observation] = []
        self._log = _request_log(log_path, log_max_bytes) if log_path else None

    async def record(
        self, request: ParsedRequest, request_id: str, placement: Placement, result: Result
    ) -> None:
        """Account for one ended attempt; every failure of a peer is survived."""
        await self._ask_predictor(placement, result)
        ttft_s = _since(placement, result.first_byte_unix_s)
        e2e_s = _since(placement, result.ended_unix_s) if result.finished else 0.0
        outcome = _outcome(request, placement, result)
        if outcome is not None:
            self._metrics.slo_requests.labels(request.model, placement.policy, outcome).inc()
        if result.finished and result.status < 400:
            self._observe(request, placement, result, ttft_s, e2e_s)
        if result.status < 400 and (result.finished or result.abandoned):
            self._teach(request, request_id, placement, result)
        if self._log is not None:
            line = _log_line(request, placement, result, ttft_s, e2e_s)
            line |= _log_slo(request.terms, outcome)
            self._log.info(json.dumps({"request_id": request_id, **line}))

    def record_rejection(
        self, request: ParsedRequest, request_id: str, refusal: SloUnattainable
    ) -> None:
        """Account for a request that was not admitted."""
        policy = self._placer.policy.name
        self._metrics.slo_requests.labels(request.model, policy, "rejected").inc()
        if self._log is not None:
            line = {
                "request_id": request_id,
                "time_unix_s": round(time.time(), 3),
                "model_name": request.model,
                "policy": policy,
                "stream": request.stream,
                "status": refusal.status,
                "finished": False,
                "predicted_ttft_s": _rounded(refusal.ttft_s),
                **_log_slo(request.terms, "rejected"),
            }
            self._log.info(json.dumps(line))

    def close(self) -> None:
        """Flush and close the request log."""
        if self._log is not None:
            for handler in list(self._log.handlers):
                self._log.removeHandler(handler)
                handler.close()

    async def _ask_predictor(self, placement: Placement, result: Result) -> None:
        """Release the reservation; fill in what only the sidecar could see."""
        stub = placement.instance.stub
        if stub is None:
            return
        answered = result.first_byte_unix_s > 0 or (result.finished and result.status < 400)
        message = predictor_pb2.CompleteRequest(
            request_id=placement.spec.request_id, answered=answered
        )
        try:
            seen = await answer_of(stub.Complete(message, timeout=_COMPLETE_DEADLINE_S))
        except NoAnswer:
            return
        if _within(placement, seen.ttft_s, result):
            self._learn_ttft(placement, seen.ttft_s, result)
        if not result.output_tokens and 0 < seen.output_tokens < _MAX_TOKENS:
            # The last snapshot of a whole answer was taken before its last token was sampled.
            result.output_tokens = seen.output_tokens + int(result.finished)
        if not result.prompt_tokens and seen.prompt_tokens <= _MAX_TOKENS:
            result.prompt_tokens = seen.prompt_tokens
        if result.cached_tokens is None and seen.HasField("cached_tokens"):
            result.cached_tokens = seen.cached_tokens

    def _learn_ttft(self, placement: Placement, engine_ttft_s: float, result: Result) -> None:
        """What a stream needs beyond the engine's TTFT is the answer's way back to us.

        It is learned from streams, and stands in where there was no stream to see it.
        """
        instance = placement.instance
        if result.first_byte_unix_s:
            instance.learn_answer_delay(_since(placement, result.first_byte_unix_s) - engine_ttft_s)
            return
        result.first_byte_unix_s = min(
            result.ended_unix_s,
            placement.decided_unix_s + engine_ttft_s + instance.answer_delay_s,
        )

    def _observe(
        self,
        request: ParsedRequest,
        placement: Placement,
        result: Result,
        ttft_s: float,
        e2e_s: float,
    ) -> None:
        instance = placement.instance
        labels = (request.model, instance.config.instance_id, placement.policy)
        self._metrics.e2e.labels(*labels).observe(e2e_s)
        if ttft_s:
            self._metrics.ttft.labels(*labels).observe(ttft_s)
        engine = "emulated" if instance.emulated else "vllm"
        error_labels = (request.model, instance.config.instance_id, engine)
        prediction = placement.prediction
        if prediction is not None and isfinite(prediction.e2e_s) and e2e_s > 0:
            error = prediction.e2e_s / e2e_s - 1
            self._metrics.e2e_error.labels(*error_labels).observe(error)
        if prediction is not None and isfinite(prediction.ttft_s) and ttft_s > 0:
            error = prediction.ttft_s / ttft_s - 1
            self._metrics.ttft_error.labels(*error_labels).observe(error)
        if result.output_tokens:
            expected = placement.spec.length.expected_tokens * placement.spec.sequences
            error = expected / result.output_tokens - 1
            self._metrics.length_error.labels(*error_labels).observe(error)

    def _teach(
        self, request: ParsedRequest, request_id: str, placement: Placement, result: Result
    ) -> None:
        spec = placement.spec
        if spec.sequences != 1:
            return  # usage sums over sequences: it says nothing of one answer's length
        if result.prompt_tokens and not request.token_ids:
            self._placer.prompt_estimator.observe(
                request.model, request.characters, request.messages, result.prompt_tokens
            )
        if not result.output_tokens:
            return
        prompt_tokens = result.prompt_tokens or spec.prompt_tokens
        censored = (
            not result.finished
            or result.truncated
            or 0 < request.max_tokens <= result.output_tokens
        )
        self._placer.history.observe(
            request.model, prompt_tokens, result.output_tokens, censored=censored
        )
        if self._tagger is None:
            return
        self._lessons.append(
            tagger_pb2.Observation(
                model_name=request.model,
                prompt_tokens=prompt_tokens,
                output_tokens=result.output_tokens,
                censored=censored,
                request_id=request_id,
            )
        )
        if len(self._lessons) == 1:
            self._background.spawn(self._send_lessons(self._tagger))

    async def _send_lessons(self, tagger: tagger_pb2_grpc.TaggerStub) -> None:
        """Tell the tagger what has gathered for a moment: one call for many answers."""
        await asyncio.sleep(_LESSON_PAUSE_S)
        lessons, self._lessons = self._lessons[-_MAX_LESSONS:], []
        message = tagger_pb2.ObserveRequest(observations=lessons)
        with suppress(NoAnswer):  # the next lessons will do as well
            await answer_of(tagger.Observe(message, timeout=_COMPLETE_DEADLINE_S))


def _since(placement: Placement, unix_s: float) -> float:
    return max(0.0, unix_s - placement.decided_unix_s) if unix_s else 0.0


def _within(placement: Placement, ttft_s: float, result: Result) -> bool:
    """Whether the TTFT that a sidecar saw can be true of this request.

    It counts from the reservation, which may have been a moment before the placement was done.
    """
    return 0 < ttft_s <= result.ended_unix_s - placement.decided_unix_s + _CLOCK_SLACK_S


def _outcome(request: ParsedRequest, placement: Placement, result: Result) -> Outcome | None:
    """Whether a whole, good answer was within its targets."""
    if not result.finished or result.status >= 400:
        return None
    tokens = result.output_tokens / placement.spec.sequences
    return request.terms.outcome(result.first_byte_unix_s, result.ended_unix_s, tokens)


def _log_slo(terms: Terms, outcome: Outcome | None) -> dict[str, object]:
    return {
        "ttft_target_s": _rounded(terms.slo.ttft_s),
        "tpot_target_s": _rounded(terms.slo.tpot_s),
        "slo_outcome": outcome,
    }


def _rounded(seconds: float) -> float | None:
    return round(seconds, 6) if isfinite(seconds) else None  # JSON has no infinity


def _log_line(
    request: ParsedRequest, placement: Placement, result: Result, ttft_s: float, e2e_s: float
) -> dict[str, object]:
    prediction = placement.prediction
    return {
        "time_unix_s": round(time.time(), 3),
        "model_name": request.model,
        "instance_id": placement.instance.config.instance_id,
        "emulated": placement.instance.emulated,
        "policy": placement.policy,
        "stream": request.stream,
        "status": result.status,
        "finished": result.finished,
        "sequences": placement.spec.sequences,
        "priority": placement.spec.priority,
        "placement_s": round(placement.took_s, 6),
        "predicted_prompt_tokens": placement.spec.prompt_tokens,
        "prompt_tokens": result.prompt_tokens or None,
        "predicted_cached_tokens": prediction.cached_tokens if prediction else None,
        "cached_tokens": result.cached_tokens,
        "predicted_output_tokens": round(placement.spec.length.expected_tokens, 1),
        "length_source": placement.spec.length.source,
        "output_tokens": result.output_tokens or None,
        "predicted_ttft_s": _rounded(prediction.ttft_s) if prediction else None,
        "ttft_s": round(ttft_s, 6) if ttft_s else None,
        "predicted_e2e_s": _rounded(prediction.e2e_s) if prediction else None,
        "e2e_s": round(e2e_s, 6) if e2e_s else None,
        "snapshot_age_s": _rounded(prediction.snapshot_age_s) if prediction else None,
        "calibration_steps": prediction.calibration_steps if prediction else None,
    }


def _request_log(path: str, max_bytes: int) -> logging.Logger:
    """A logger of its own that writes bare lines to a file rotated by size."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger(f"foretell.requests.{path}")
    log.propagate = False
    log.setLevel(logging.INFO)
    handler = RotatingFileHandler(path, maxBytes=max_bytes, backupCount=1)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    return log
