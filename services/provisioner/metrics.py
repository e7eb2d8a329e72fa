"""The Prometheus metrics of the provisioner."""

from collections.abc import Mapping
from typing import Any, get_args

from prometheus_client import CollectorRegistry

from foretell.provision import Because, Decision, Facts, Phase
from foretell.telemetry import Declared


class ProvisionerMetrics(Declared):
    """What one replica decides. Gauges of decisions keep their last value on a standby."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry())
        self.active = self.gauge(
            "foretell_provisioner_active",
            "boolean",
            "1 on the replica that decides, 0 on those that stand by.",
        )
        self.desired = self.gauge(
            "foretell_desired_replicas",
            "instances",
            "Desired number of instances.",
        )
        self.reason = self.gauge(
            "foretell_desired_reason",
            "boolean",
            "1 for the reason: strategy, bounds, held (a request waits and there is no instance), "
            "batches (their deadlines), cool_down, survivors (the rest could not take over), stale "
            "(numbers are missing or old), manual (set by hand), stuck (started instances never "
            "got ready).",
            ("reason",),
        )
        self.confidence = self.gauge(
            "foretell_desired_confidence_ratio",
            "ratio",
            "Probability that so many instances keep the targets; NaN if the strategy gives none.",
        )
        self.age = self.gauge(
            "foretell_desired_age_seconds",
            "seconds",
            "Age of the oldest input of the decision; infinite if one is missing.",
        )
        self.instances = self.gauge(
            "foretell_provisioned_instances",
            "instances",
            "Instances by phase: warming, ready or draining.",
            ("phase",),
        )
        self.arrived = self.counter(
            "foretell_provisioner_arrivals_total",
            "requests",
            "Requests that arrived at the schedulers.",
        )
        self.forecast = self.gauge(
            "foretell_forecast_arrivals",
            "requests/s",
            "Arrivals per second predicted for when an instance started now is ready; NaN without "
            "a forecast.",
        )
        self.cold_start = self.gauge(
            "foretell_cold_start_seconds",
            "seconds",
            "P90 of the start times of the latest instances.",
        )
        self.given_up = self.counter(
            "foretell_given_up_total",
            "instances",
            "Instances given up because they never got ready.",
        )
        self.driver_failures = self.counter(
            "foretell_driver_failures_total",
            "failures",
            "Failed orders to start, drain or stop an instance; they are repeated.",
        )
        self.wasted = self.gauge(
            "foretell_regret_wasted_hours",
            "hours",
            "Instance-hours of the last replayed hour that one instance less would have saved, "
            "targets kept.",
        )
        self.saved_by_one_more = self.gauge(
            "foretell_regret_saved_requests",
            "requests",
            "Requests of the last replayed hour that only one instance more would have kept within "
            "their targets.",
        )
        self.replayed_within = self.gauge(
            "foretell_regret_within_ratio",
            "ratio",
            "Share of the last replayed hour's requests within their targets with one instance "
            "fewer, the same, one more; and measured, of a sample of the real answers.",
            ("instances",),
        )
        self.forecast_error = self.gauge(
            "foretell_regret_forecast_error_ratio",
            "ratio",
            "Mean forecast error of the last replayed hour, of arrivals, output_tokens (relative, "
            "absolute) or within (predicted - replayed ratio within targets).",
            ("of",),
        )
        self.regret_failures = self.counter(
            "foretell_regret_failures_total",
            "failures",
            "Hours that could not be replayed.",
        )
        self.process()

    def show(self, facts: Facts, decision: Decision) -> None:
        """Show a decision and what it rests on."""
        self.desired.set(decision.desired)
        for reason in get_args(Because):
            self.reason.labels(reason).set(reason == decision.because)
        self.confidence.set(_number(decision.confidence))
        self.forecast.set(_number(decision.forecast))
        self.age.set(decision.age_s)
        for phase in Phase:
            self.instances.labels(phase.value).set(len(facts.in_phase(phase)))
        self.arrived.inc(facts.arrived)

    def look_back(self, window: Mapping[str, Any]) -> None:
        """Show what `foretell.provision.regret.Regret` says of a window."""
        self.wasted.set(window["wasted_instance_s"] / 3600.0)
        self.saved_by_one_more.set(window["saved_by_one_more"])
        within = (*window["within"], window["measured_within"])
        for instances, ratio in zip(("fewer", "same", "more", "measured"), within, strict=True):
            self.replayed_within.labels(instances).set(_number(ratio))
        predicted = window["predicted_within"]
        errors = {
            "arrivals": window["arrivals_error"],
            "output_tokens": window["lengths_error"],
            "within": None if predicted is None else predicted - window["within"][1],
        }
        for of, error in errors.items():
            self.forecast_error.labels(of).set(_number(error))


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
