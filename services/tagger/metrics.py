"""The Prometheus metrics of the tagger."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


class TaggerMetrics:
    """One registry per server, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "foretell_tagger_requests_total",
            "Estimates given, by source: hint, model, history or prior.",
            ["source"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "foretell_tagger_latency_seconds",
            "Time from the arrival of a request to its estimate.",
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.misses = Counter(
            "foretell_tagger_model_misses_total",
            "Prompts that the model did not read: history answered, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.recalled = Counter(
            "foretell_tagger_recalled_total",
            "Prompts for which the model's earlier result was reused.",
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "foretell_tagger_batch_size",
            "Prompts in one inference of the model.",
            buckets=_BATCH_BUCKETS,
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "foretell_tagger_queue_depth",
            "Prompts waiting for the model.",
            registry=self.registry,
        )
        self.observations = Counter(
            "foretell_tagger_observations_total",
            "Finished requests that the tagger has learned from.",
            registry=self.registry,
        )
