"""The Prometheus metrics of the provisioner."""

from typing import get_args

from prometheus_client import CollectorRegistry

from foretell.provision import Because, Facts, InstancePhase, ProvisionDecision
from foretell.telemetry import Declared


class ProvisionerMetrics(Declared):
    """The decisions of one replica. On a standby, gauges of decisions keep their last value."""

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
        self.process()

    def show(self, facts: Facts, decision: ProvisionDecision) -> None:
        """Show a decision and the facts behind it."""
        self.desired.set(decision.desired)
        for reason in get_args(Because):
            self.reason.labels(reason).set(reason == decision.because)
        self.confidence.set(_number(decision.confidence))
        self.forecast.set(_number(decision.forecast))
        self.age.set(decision.age_s)
        for phase in InstancePhase:
            self.instances.labels(phase.value).set(len(facts.in_phase(phase)))
        self.arrived.inc(facts.arrived)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
