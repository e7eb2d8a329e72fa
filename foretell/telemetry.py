"""The bridge to Prometheus: every metric of the scheduler and the predictor, in one place.

Labels are `model_name`, `instance_id`, `policy` and `engine` ("vllm" or "emulated": an emulated
engine is no evidence of accuracy), never a request id.
"""

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
        self.requests = Counter(
            "foretell_requests_total",
            "Requests ended, by HTTP status.",
            ["model_name", "instance_id", "policy", "status"],
            registry=registry,
        )
        self.in_progress = Gauge(
            "foretell_requests_in_progress", "Requests being served.", registry=registry
        )
        self.retries = Counter(
            "foretell_retries_total",
            "Attempts that failed before the first token and went elsewhere.",
            ["instance_id", "reason"],
            registry=registry,
        )
        self.degraded = Counter(
            "foretell_degraded_total",
            "Placements that had to do without an answer.",
            ["missing"],
            registry=registry,
        )
        self.ttft = _histogram("foretell_ttft_seconds", "Time to first token.", registry)
        self.e2e = _histogram("foretell_e2e_seconds", "Time to the last token.", registry)
        self.placement = Histogram(
            "foretell_placement_seconds",
            "Time to ask the predictors and choose, waiting for a turn included.",
            ["policy"],
            buckets=_OVERHEAD_BUCKETS_S,
            registry=registry,
        )
        self.ttft_error = _error("foretell_ttft_prediction_error_ratio", "TTFT", registry)
        self.e2e_error = _error("foretell_e2e_prediction_error_ratio", "End-to-end", registry)
        self.length_error = _error(
            "foretell_output_tokens_prediction_error_ratio", "Output length", registry
        )
        self.slo_requests = Counter(
            "foretell_slo_requests_total",
            "Requests with targets, by whether they were met, missed, or not admitted.",
            ["model_name", "policy", "outcome"],
            registry=registry,
        )
        self.healthy = Gauge(
            "foretell_instance_healthy",
            "1 when requests are placed on it.",
            ["instance_id", "engine"],
            registry=registry,
        )


class PredictorMetrics:
    """What one sidecar counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.predictions = Counter(
            "foretell_predictions_total", "Predictions answered.", registry=registry
        )
        self.predict_seconds = Histogram(
            "foretell_predict_seconds",
            "Time to answer one Predict.",
            buckets=_OVERHEAD_BUCKETS_S,
            registry=registry,
        )
        self.snapshots = Counter(
            "foretell_snapshots_total", "Engine snapshots received.", registry=registry
        )
        self.snapshot_age = Gauge(
            "foretell_snapshot_age_seconds",
            "Age of what the last prediction knew.",
            registry=registry,
        )
        self.step_error = Gauge(
            "foretell_step_time_error_ratio",
            "Recent mean absolute relative error of step time, one step ahead.",
            registry=registry,
        )
        self.step_changes = Counter(
            "foretell_step_time_changes_total",
            "Times that the engine seemed to have changed its speed.",
            registry=registry,
        )
        self.step_spread = Gauge(
            "foretell_step_time_spread_ratio",
            "Relative standard deviation of the predicted time of so many steps to come.",
            ["steps"],
            registry=registry,
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
        f"{subject}: (predicted - actual) / actual.",
        ["model_name", "instance_id", "engine"],
        buckets=_ERROR_BUCKETS_RATIO,
        registry=registry,
    )
