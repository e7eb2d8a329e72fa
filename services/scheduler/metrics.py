"""The Prometheus metrics of the scheduler."""

from prometheus_client import CollectorRegistry, Histogram

from foretell.telemetry import ERROR, ERROR_BUCKETS_RATIO, Declared

_LATENCY_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_TPOT_BUCKETS_S = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_OVERHEAD_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
_LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 1.0)
"""The levels of the quantiles that length models give."""
_OF_ANSWERS = ("model_name", "instance_id", "policy", "class")
_OF_TOKENS = ("instance_id", "class")


class SchedulerMetrics(Declared):
    """What one scheduler replica counts. Errors are signed: (predicted - actual) / actual."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._count_requests()
        self._observe_answers()
        self._compare_predictions()
        self._show_instances()
        self.process()

    def _count_requests(self) -> None:
        self.requests = self.counter(
            "foretell_requests_total",
            "requests",
            "Ended requests, by HTTP status (499: the client left, 502: a stream broke off). Of "
            "refused ones the other labels are empty.",
            ("model_name", "instance_id", "policy", "status"),
        )
        self.in_progress = self.gauge(
            "foretell_requests_in_progress",
            "requests",
            "Requests accepted and not yet answered in full.",
        )
        self.over_share = self.gauge(
            "foretell_requests_over_share",
            "requests",
            "Requests that wait because their caller has used more than its fair share.",
        )
        self.late = self.gauge(
            "foretell_requests_late",
            "requests",
            "Requests that wait for room because they will hardly meet their TTFT target.",
        )
        self.log_lines_lost = self.counter(
            "foretell_request_log_lines_lost_total",
            "lines",
            "Lines of the request log that could not be written.",
        )
        self.retries = self.counter(
            "foretell_retries_total",
            "attempts",
            "Attempts that failed before the first token, by reason.",
            ("instance_id", "reason"),
        )
        self.continuations = self.counter(
            "foretell_continuations_total",
            "streams",
            "Streams that another engine continued after theirs broke off, by reason.",
            ("instance_id", "reason"),
        )
        self.recalls = self.counter(
            "foretell_recalls_total",
            "requests",
            "Requests recalled from an engine's queue to be served elsewhere sooner.",
            ("instance_id",),
        )
        self.degraded = self.counter(
            "foretell_degraded_total",
            "predictions",
            "Predictions that placements had to do without, by what was missing.",
            ("missing",),
        )
        self.lengths_revised = self.counter(
            "foretell_lengths_revised_total",
            "requests",
            "Requests whose estimated length the tagger corrected after their placement.",
        )
        self.snapshots_refused = self.counter(
            "foretell_snapshots_refused_total",
            "messages",
            "Snapshots from predictors that were rejected as invalid, by reason.",
            ("instance_id", "reason"),
        )
        self.placement = self.histogram(
            "foretell_placement_seconds",
            "seconds",
            "Time to place a request: predicting, choosing, and any wait for an instance.",
            ("policy",),
            buckets=_OVERHEAD_BUCKETS_S,
        )

    def _observe_answers(self) -> None:
        self.ttft = self.histogram(
            "foretell_ttft_seconds",
            "seconds",
            "Time from placement to the first token of completed answers.",
            _OF_ANSWERS,
            buckets=_LATENCY_BUCKETS_S,
        )
        self.tpot = self.histogram(
            "foretell_tpot_seconds",
            "seconds",
            "Mean time per output token after the first, of completed answers.",
            _OF_ANSWERS,
            buckets=_TPOT_BUCKETS_S,
            formula="(e2e - TTFT) / (output tokens - 1)",
        )
        self.e2e = self.histogram(
            "foretell_e2e_seconds",
            "seconds",
            "Time from placement to the last token of completed answers.",
            _OF_ANSWERS,
            buckets=_LATENCY_BUCKETS_S,
        )
        self.tenant_tokens = self.counter(
            "foretell_tenant_tokens_total",
            "tokens",
            "Tokens of prompts and answers, by the caller's name or key number.",
            ("tenant",),
        )
        self.prompt_tokens = self.counter(
            "foretell_prompt_tokens_total",
            "tokens",
            "Prompt tokens of completed answers.",
            _OF_TOKENS,
        )
        self.output_tokens = self.counter(
            "foretell_output_tokens_total",
            "tokens",
            "Output tokens of completed answers.",
            _OF_TOKENS,
        )
        self.cached_tokens = self.counter(
            "foretell_cached_prompt_tokens_total",
            "tokens",
            "Prompt tokens found in the engine's prefix cache, as far as known.",
            _OF_TOKENS,
        )
        self.predicted_cached_tokens = self.counter(
            "foretell_predicted_cached_prompt_tokens_total",
            "tokens",
            "Predicted prefix-cache hits of the requests whose actual hits are known.",
            _OF_TOKENS,
        )
        self.slo_requests = self.counter(
            "foretell_slo_requests_total",
            "requests",
            "Requests with targets, by outcome: met, missed or rejected.",
            ("model_name", "policy", "outcome"),
        )

    def _compare_predictions(self) -> None:
        self.ttft_error = self._error("foretell_ttft_prediction_error_ratio", "TTFT")
        self.e2e_error = self._error("foretell_e2e_prediction_error_ratio", "e2e latency")
        self.announced_p90 = self.counter(
            "foretell_announced_p90_total",
            "answers",
            "Answers of whose `latency` clients were told a P90, by whether they kept to it; 90% "
            "should.",
            ("latency", "kept"),
        )
        self.length_error = self._error(
            "foretell_output_tokens_prediction_error_ratio", "output length"
        )
        self.length_level = self.histogram(
            "foretell_output_tokens_level_ratio",
            "ratio",
            "Level of the true output length in its predicted distribution; uniform if calibrated.",
            ("model_name",),
            buckets=_LEVELS,
            formula="P(length <= actual)",
        )

    def _show_instances(self) -> None:
        self.unheard = self.gauge(
            "foretell_discovery_unheard_seconds",
            "seconds",
            "Time for which the API server of Kubernetes could not be heard; the known instances "
            "stay. 0: it is heard, or instances are listed.",
        )
        self.healthy = self.gauge(
            "foretell_instance_healthy",
            "boolean",
            "1 while health probes of the instance succeed, else 0.",
            ("instance_id", "engine"),
        )
        self.followed = self.gauge(
            "foretell_predictor_followed",
            "boolean",
            "1 while the instance's predictor sends snapshots.",
            ("instance_id",),
        )
        self.running = self.gauge(
            "foretell_running_requests",
            "requests",
            "Requests that run on the instance.",
            ("instance_id",),
        )
        self.waiting = self.gauge(
            "foretell_waiting_requests",
            "requests",
            "Requests in the instance's queue or on their way to it.",
            ("instance_id",),
        )
        self.kv_used = self.gauge(
            "foretell_kv_used_ratio",
            "ratio",
            "Share of the instance's KV blocks in use or reserved.",
            ("instance_id",),
            formula="used blocks / total blocks",
        )
        self.kv_offline = self.gauge(
            "foretell_kv_offline_ratio",
            "ratio",
            "Share of the instance's KV blocks held by offline requests.",
            ("instance_id",),
            formula="their blocks / total blocks",
        )
        self.calibration_steps = self.gauge(
            "foretell_calibration_steps",
            "steps",
            "Engine steps that step times have been calibrated on.",
            ("instance_id",),
        )
        self.approximate = self.gauge(
            "foretell_prediction_approximate",
            "boolean",
            "1 for each feature in use that predictions do not model.",
            ("instance_id", "feature"),
        )
        self.unpredicted = self.gauge(
            "foretell_engine_unpredicted",
            "boolean",
            "1 for each engine of which nothing is predicted, with the reason.",
            ("instance_id", "reason"),
        )
        self.foreseen_ttft = self.gauge(
            "foretell_predicted_ttft_seconds",
            "seconds",
            "Predicted TTFT of a request with 256 prompt tokens that arrives now.",
            ("instance_id",),
        )
        self.foreseen_e2e = self.gauge(
            "foretell_predicted_e2e_seconds",
            "seconds",
            "Predicted e2e latency of that request with 256 output tokens.",
            ("instance_id",),
        )

    def _error(self, name: str, subject: str) -> Histogram:
        return self.histogram(
            name,
            "ratio",
            f"Relative error of the predicted {subject}.",
            ("model_name", "instance_id", "engine"),
            buckets=ERROR_BUCKETS_RATIO,
            formula=ERROR,
        )
