"""The Prometheus metrics of the tagger."""

from prometheus_client import CollectorRegistry

from foretell.telemetry import ERROR, ERROR_BUCKETS_RATIO, Declared

_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


class TaggerMetrics(Declared):
    """The tagger's metrics: one registry per server, so that one process can run several."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry())
        self.requests = self.counter(
            "foretell_tagger_requests_total",
            "requests",
            "Estimates given, by source: hint, model, history or prior.",
            ("source",),
        )
        self.latency = self.histogram(
            "foretell_tagger_latency_seconds",
            "seconds",
            "Time from the arrival of a request to its estimate.",
            buckets=_LATENCY_BUCKETS_S,
        )
        self.error = self.histogram(
            "foretell_tagger_error_ratio",
            "ratio",
            "Relative error of the tagger's estimates, of answers that ended by themselves.",
            ("source",),
            buckets=ERROR_BUCKETS_RATIO,
            formula=ERROR,
        )
        self.misses = self.counter(
            "foretell_tagger_model_misses_total",
            "prompts",
            "Prompts that the model did not read, by reason.",
            ("reason",),
        )
        self.batch_size = self.histogram(
            "foretell_tagger_batch_size",
            "prompts",
            "Prompts in one inference of the model.",
            buckets=_BATCH_BUCKETS,
        )
        self.queue_depth = self.gauge(
            "foretell_tagger_queue_depth", "prompts", "Prompts waiting for the model."
        )
        self.observations = self.counter(
            "foretell_tagger_observations_total",
            "requests",
            "Answers that the tagger has learned from.",
        )
        self.process()
