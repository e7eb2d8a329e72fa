"""The Prometheus metrics of the predictor."""

from prometheus_client import CollectorRegistry

from foretell.telemetry import Declared

SPREAD_STEPS = (1, 10, 100)
"""Numbers of steps for which the spread of their time is exported."""


class PredictorMetrics(Declared):
    """The metrics of one sidecar."""

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
