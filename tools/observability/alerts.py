"""What somebody should be told of. docs/runbook.md says of each alert what to do."""

from dataclasses import dataclass
from typing import Any

RUNBOOK = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """Fires when `signal` has satisfied `condition` for `lasting`."""

    name: str
    signal: str
    """PromQL of the figure that is watched, for as long as there is one."""
    condition: str
    lasting: str
    severity: str
    """"page": somebody must look now; "ticket": today."""
    summary: str

    @property
    def expression(self) -> str:
        """PromQL that gives a series for each case."""
        return f"({self.signal}) {self.condition}"

    @property
    def anchor(self) -> str:
        """Its section of the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"


ALERTS = (
    Alert(
        "ForetellEngineLost",
        "min by (instance_id) (foretell_instance_healthy)",
        "== 0",
        "30s",
        "page",
        "Engine {{ $labels.instance_id }} does not answer health probes.",
    ),
    Alert(
        "ForetellSchedulerDown",
        "min by (instance) (up{job='scheduler'})",
        "== 0",
        "1m",
        "page",
        "The scheduler at {{ $labels.instance }} cannot be scraped.",
    ),
    Alert(
        "ForetellErrors",
        # By model: one that nobody serves any more would hide behind the others' traffic.
        "(sum by (model_name) (rate(foretell_requests_total{status=~'5..'}[5m]))"
        " or 0 * sum by (model_name) (rate(foretell_requests_total[5m])))"
        " / sum by (model_name) (rate(foretell_requests_total[5m]))",
        "> 0.05",
        "5m",
        "page",
        "{{ $value | humanizePercentage }} of the requests for {{ $labels.model_name }} end with a "
        "status of 500 or above.",
    ),
    Alert(
        "ForetellLatency",
        "histogram_quantile(0.95, sum by (le, model_name) "
        "(rate(foretell_ttft_seconds_bucket[10m])))"
        " / histogram_quantile(0.95, sum by (le, model_name) "
        "(rate(foretell_ttft_seconds_bucket[1d])))",
        "> 3",
        "10m",
        "ticket",
        "First tokens of {{ $labels.model_name }} take {{ $value | humanize }} times as long as on "
        "the last day.",
    ),
    Alert(
        "ForetellEngineUnpredicted",
        "min by (instance_id) (foretell_predictor_followed)"
        " or 0 * min by (instance_id) (foretell_instance_healthy)",
        "== 0",
        "1m",
        "ticket",
        "Schedulers hear no predictor of {{ $labels.instance_id }}.",
    ),
    Alert(
        "ForetellDiscoveryBlind",
        "max(foretell_discovery_unheard_seconds)",
        "> 60",
        "1m",
        "ticket",
        "A scheduler cannot hear the API server of Kubernetes; the engines that it knows stay.",
    ),
    Alert(
        "ForetellPredictionDrift",
        "abs(histogram_quantile(0.5, sum by (le, instance_id) "
        "(rate(foretell_e2e_prediction_error_ratio_bucket[15m]))))",
        "> 0.3",
        "15m",
        "ticket",
        "Predictions for {{ $labels.instance_id }} are off to one side by "
        "{{ $value | humanizePercentage }}.",
    ),
    Alert(
        "ForetellSloBurn",
        "1 - (sum(rate(foretell_slo_requests_total{outcome='met'}[5m])) or vector(0))"
        " / sum(rate(foretell_slo_requests_total[5m]))",
        "> 0.1",
        "5m",
        "page",
        "{{ $value | humanizePercentage }} of the requests with targets miss them.",
    ),
    Alert(
        "ForetellPlacementsDegraded",
        "(sum(rate(foretell_degraded_total[5m])) or vector(0))"
        " / sum(rate(foretell_placement_seconds_count[5m]))",
        "> 0.05",
        "5m",
        "ticket",
        "{{ $value | humanizePercentage }} of the placements lack a predictor's answer.",
    ),
    Alert(
        "ForetellTaggerLate",
        "(sum(rate(foretell_tagger_model_misses_total[5m])) or vector(0))"
        " / sum(rate(foretell_tagger_requests_total[5m]))",
        "> 0.2",
        "10m",
        "ticket",
        "The tagger's model did not read {{ $value | humanizePercentage }} of the prompts.",
    ),
    Alert(
        "ForetellProvisioningStuck",
        "max(foretell_desired_reason{reason='stuck'}"
        " and on (instance) (foretell_provisioner_active == 1))",
        "== 1",
        "5m",
        "page",
        "More engines are wanted, but those that were started never got ready.",
    ),
    Alert(
        "ForetellProvisioningBlind",
        "max(foretell_desired_reason{reason='stale'}"
        " and on (instance) (foretell_provisioner_active == 1))",
        "== 1",
        "2m",
        "page",
        "The provisioner lacks numbers and holds the number of engines.",
    ),
    Alert(
        "ForetellDriverFailing",
        "sum(increase(foretell_driver_failures_total[10m]))",
        "> 3",
        "1m",
        "page",
        "The provisioner's orders fail.",
    ),
    Alert(
        "ForetellBatchLate",
        "max(foretell_batches_late)",
        "> 0",
        "10m",
        "ticket",
        "{{ $value }} batches will probably not be done within their completion window.",
    ),
)


def rules() -> dict[str, Any]:
    """The alerts as a file of rules for Prometheus."""
    found = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasting,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "runbook_url": alert.anchor},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "foretell", "rules": found}]}
