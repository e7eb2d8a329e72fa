"""The Prometheus metrics of the batch service."""

from prometheus_client import CollectorRegistry

from foretell.telemetry import Declared


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
