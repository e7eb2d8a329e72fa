"""The bridge to Prometheus, and the catalogue of metrics: what declares one also describes it.

Labels are `model_name`, `instance_id`, `policy` and `engine` ("vllm" or "emulated": an emulated
engine is no evidence of accuracy), `class` ("online" or "offline"), `tenant`, and reasons; never a
request id.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from foretell import __version__

_LATENCY_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_TPOT_BUCKETS_S = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_OVERHEAD_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
SPREAD_STEPS = (1, 10, 100)
"""Runs whose spread is exported, in steps."""
ERROR_BUCKETS_RATIO = (
    -1.0, -0.75, -0.5, -0.25, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
_LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 1.0)
"""Those of the quantiles that length models give."""
ERROR = "(predicted - actual) / actual"
_OF_ANSWERS = ("model_name", "instance_id", "policy", "class")
_OF_TOKENS = ("instance_id", "class")


MOST_SERIES = 10_000
"""Sets of labels that are remembered for a metric."""


def series(metric: Any) -> Callable[..., Any]:
    """`metric.labels`, which takes longer than to count, remembered for each set of labels."""
    return lru_cache(MOST_SERIES)(metric.labels)


class _Counter(Counter):
    """One whose series has no exemplars: each request counts several times."""

    def inc(self, amount: float = 1, exemplar: None = None) -> None:  # type: ignore[override]
        """Count `amount`; ValueError where it is negative."""
        if amount < 0:
            raise ValueError("counters only grow")
        self._value.inc(amount)


class _Histogram(Histogram):
    """One without exemplars whose buckets are found by bisection."""

    def observe(self, amount: float, exemplar: None = None) -> None:  # type: ignore[override]
        """Count `amount` in its bucket."""
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the catalogue."""

    name: str
    """What a query calls it; a histogram has `_bucket`, `_count` and `_sum`."""
    kind: str
    """"counter", "gauge" or "histogram"."""
    unit: str
    labels: tuple[str, ...]
    meaning: str
    formula: str = ""
    """How it is computed, where it is more than a count or a time."""


class Declared:
    """The metrics of one process, which are in the catalogue because they are made here."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.catalogue: list[Metric] = []

    def counter(self, name: str, unit: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows while the process lives."""
        self.catalogue.append(Metric(name, "counter", unit, tuple(labels), meaning))
        return _Counter(name, meaning, labels, registry=self.registry)

    def gauge(
        self, name: str, unit: str, meaning: str, labels: Sequence[str] = (), formula: str = ""
    ) -> Gauge:
        """A number that is what it is at the moment."""
        self.catalogue.append(Metric(name, "gauge", unit, tuple(labels), meaning, formula))
        return Gauge(name, meaning, labels, registry=self.registry)

    def histogram(
        self,
        name: str,
        unit: str,
        meaning: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        formula: str = "",
    ) -> Histogram:
        """A distribution; `buckets` are upper bounds, ascending."""
        self.catalogue.append(Metric(name, "histogram", unit, tuple(labels), meaning, formula))
        return _Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)

    def process(self) -> None:
        """Which release runs, and what the operating system knows of the process."""
        release = self.gauge(
            "foretell_build_info", "boolean", "1; the label is the release that runs.", ("version",)
        )
        release.labels(__version__).set(1)
        for family in ProcessCollector(registry=self.registry).collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            unit = next((u for u in ("bytes", "seconds") if f"_{u}" in name), "files")
            self.catalogue.append(Metric(name, family.type, unit, (), family.documentation))


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
        self.told_p90 = self.counter(
            "foretell_told_p90_total",
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


class PredictorMetrics(Declared):
    """What one sidecar counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.snapshots = self.counter(
            "foretell_snapshots_total",
            "snapshots",
            "Snapshots received from the engine, including repeated ones.",
        )
        self.snapshot_age = self.gauge(
            "foretell_snapshot_age_seconds",
            "seconds",
            "Time since the engine's last snapshot; infinite before the first.",
        )
        self.preemptions = self.counter(
            "foretell_preemptions_total",
            "preemptions",
            "Preemptions of finished requests.",
        )
        self.step_error = self.gauge(
            "foretell_step_time_error_ratio",
            "ratio",
            "Mean absolute relative error of step times, over about 64 steps.",
            formula="mean of |predicted - actual| / actual",
        )
        self.step_changes = self.counter(
            "foretell_step_time_changes_total",
            "changes",
            "Times that calibration started again after persistent errors of one sign.",
        )
        self.step_spread = self.gauge(
            "foretell_step_time_spread_ratio",
            "ratio",
            "Relative standard deviation of the predicted time of the next 1, 10 or 100 steps.",
            ("steps",),
        )
        self.process()


class BatchMetrics(Declared):
    """What the batch service counts."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry())
        self.batches = self.gauge(
            "foretell_batches", "batches", "Batches that have not ended, by status.", ("status",)
        )
        self.requests = self.counter(
            "foretell_batch_requests_total",
            "requests",
            "Batch requests with a durable result, by outcome: completed or failed.",
            ("outcome",),
        )
        self.tokens = self.counter(
            "foretell_batch_tokens_total",
            "tokens",
            "Tokens of batch requests, by kind: input or output.",
            ("kind",),
        )
        self.cached_tokens = self.counter(
            "foretell_batch_cached_tokens_total",
            "tokens",
            "Prompt tokens of batch requests found in a prefix cache.",
        )
        self.tries_again = self.counter(
            "foretell_batch_tries_again_total",
            "requests",
            "Attempts of batch requests that failed and are repeated.",
        )
        self.promises = self.counter(
            "foretell_batch_promises_total",
            "batches",
            "Ended batches, by whether the first predicted end was kept or missed.",
            ("outcome",),
        )
        self.late = self.gauge(
            "foretell_batches_late",
            "batches",
            "Batches in progress that will probably miss their completion window.",
        )
        self.left_seconds = self.gauge(
            "foretell_batches_left_seconds",
            "seconds",
            "Predicted time until all batches in progress are done; 0 while unknown.",
        )
        self.left = self.gauge(
            "foretell_batch_requests_left",
            "requests",
            "Requests of batches in progress that have not ended.",
        )
        self.in_flight = self.gauge(
            "foretell_batch_requests_in_flight",
            "requests",
            "Batch requests in flight.",
        )
        self.window = self.gauge(
            "foretell_batch_window",
            "requests",
            "Batch requests that may be in flight while online targets hold.",
        )
        self.density = self.gauge(
            "foretell_batch_density_ratio",
            "ratio",
            "Compute time over KV-cache read time of the batch ordered last; 0: unknown.",
        )
        self.process()
