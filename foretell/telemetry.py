"""The bridge to Prometheus: every metric of the scheduler and the predictor, in one place.

Labels are `model_name`, `instance_id`, `policy` and `engine` ("vllm" or "emulated": an emulated
engine is no evidence of accuracy), never a request id.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_OVERHEAD_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
SPREAD_STEPS = (1, 10, 100)
"""Runs whose spread is exported, in steps."""
_ERROR_BUCKETS_RATIO = (
    -1.0, -0.75, -0.5, -0.25, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip


class SchedulerMetrics:
    """What one scheduler replica counts. Errors are signed: (predicted - actual) / actual."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.requests = counter(
            "foretell_requests_total",
            "Requests ended, by HTTP status; 499: the client left, 502: a begun stream broke. "
            "Requests that were refused have no other labels.",
            ["model_name", "instance_id", "policy", "status"],
        )
        self.in_progress = gauge(
            "foretell_requests_in_progress",
            "Requests that were accepted and are not yet answered in full.",
        )
        self.retries = counter(
            "foretell_retries_total",
            "Attempts that failed before the first token, by reason; the request went elsewhere.",
            ["instance_id", "reason"],
        )
        self.recalls = counter(
            "foretell_recalls_total",
            "Requests called back from an engine's queue, to be served elsewhere sooner.",
            ["instance_id"],
        )
        self.degraded = counter(
            "foretell_degraded_total",
            "Answers that placements had to do without: one predictor's, or all predictors' as the "
            "wait for a turn was too long.",
            ["missing"],
        )
        self.lengths_revised = counter(
            "foretell_lengths_revised_total",
            "Requests of which the tagger said, after they were placed, that their answers will be "
            "much longer or shorter than was believed.",
            [],
        )
        self.pictures_refused = Counter(
            "foretell_pictures_refused_total",
            "Messages of predictors that were not believed, by reason; what was known stays.",
            ["instance_id", "reason"],
            registry=registry,
        )
        self.ttft = _histogram(
            "foretell_ttft_seconds",
            "Time from placement to the first token, of answers that ended well.",
            registry,
        )
        self.e2e = _histogram(
            "foretell_e2e_seconds",
            "Time from placement to the last token, of answers that ended well.",
            registry,
        )
        self.placement = Histogram(
            "foretell_placement_seconds",
            "Time to place a request: waiting for a turn, asking predictors, choosing.",
            ["policy"],
            buckets=_OVERHEAD_BUCKETS_S,
            registry=registry,
        )
        self.ttft_error = _error("foretell_ttft_prediction_error_ratio", "TTFT", registry)
        self.e2e_error = _error(
            "foretell_e2e_prediction_error_ratio", "End-to-end latency", registry
        )
        self.length_error = _error(
            "foretell_output_tokens_prediction_error_ratio", "Output length", registry
        )
        self.slo_requests = counter(
            "foretell_slo_requests_total",
            "Requests with targets whose outcome is known: met, missed or rejected.",
            ["model_name", "policy", "outcome"],
        )
        self.healthy = gauge(
            "foretell_instance_healthy",
            "1 while health probes of the instance succeed, else 0.",
            ["instance_id", "engine"],
        )


class PredictorMetrics:
    """What one sidecar counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.predictions = counter("foretell_predictions_total", "Predictions made for schedulers.")
        self.predict_seconds = Histogram(
            "foretell_predict_seconds",
            "Time to compute one prediction, without the transport.",
            buckets=_OVERHEAD_BUCKETS_S,
            registry=registry,
        )
        self.snapshots = counter(
            "foretell_snapshots_total",
            "Snapshots received from the engine, repeated ones included.",
        )
        self.snapshot_age = gauge(
            "foretell_snapshot_age_seconds",
            "Time since the engine last published anything, at the last prediction.",
        )
        self.step_error = gauge(
            "foretell_step_time_error_ratio",
            "Mean absolute relative error of predicted step times, over about the last 64 steps.",
        )
        self.step_changes = counter(
            "foretell_step_time_changes_total",
            "Times that step times were off to one side for so long that they are learned anew.",
        )
        self.step_spread = gauge(
            "foretell_step_time_spread_ratio",
            "Relative standard deviation of the predicted time of the next 1, 10 or 100 steps.",
            ["steps"],
        )


def _histogram(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        name,
        text,
        ["model_name", "instance_id", "policy"],
        buckets=_LATENCY_BUCKETS_S,
        registry=registry,
    )


def _error(name: str, subject: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        name,
        f"{subject}: (predicted - actual) / actual. Emulated engines are no evidence of accuracy.",
        ["model_name", "instance_id", "engine"],
        buckets=_ERROR_BUCKETS_RATIO,
        registry=registry,
    )
