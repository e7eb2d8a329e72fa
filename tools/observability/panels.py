"""The panels of the dashboards: what is asked of Prometheus, and what the answer means."""

import re
from dataclasses import dataclass

WINDOW = "$__rate_interval"
"""Grafana's variable for the shortest window that holds enough scrapes."""


_NAME = re.compile(r"\bforetell_\w+")
_PARTS = re.compile(r"_(bucket|count|sum)$")
_FAILED = "{status=~'5..'}"
_MET = "{outcome='met'}"
_SCHEDULERS = "{job='scheduler'}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a line for each series that a query gives."""

    title: str
    unit: str
    """Grafana's name of it: reqps, s, percentunit, short."""
    meaning: str
    queries: tuple[tuple[str, str], ...]
    """PromQL, and the legend of its series."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page of Grafana."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def metrics_of(expression: str) -> set[str]:
    """The metrics that PromQL names, parts of histograms by their histogram."""
    return {_PARTS.sub("", name) for name in _NAME.findall(expression)}


def _rate(metric: str, by: str = "", where: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{where}[{WINDOW}]))"


def _quantiles(
    metric: str, by: str = "", levels: tuple[float, ...] = (0.5, 0.99)
) -> tuple[tuple[str, str], ...]:
    """Quantiles of a histogram, over all its series or by one label."""
    grouped = _rate(f"{metric}_bucket", f"le, {by}" if by else "le")
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        (f"histogram_quantile({level}, {grouped})", f"{legend}P{100 * level:g}") for level in levels
    )


def _at(bound: float) -> str:
    """Selects the bucket of a histogram with that upper bound."""
    return f"{{le='{bound:g}'}}"


def _gauge(metric: str, legend: str = "{{instance_id}}") -> tuple[tuple[str, str], ...]:
    """Replicas tell the same of an instance, each as it knows it: the largest counts."""
    return ((f"max by (instance_id) ({metric})", legend),)


_ANSWERED = _rate("foretell_e2e_seconds_count")
_OVERVIEW = (
    Panel(
        "Requests",
        "reqps",
        "Requests ended, by status.",
        ((_rate("foretell_requests_total", "status"), "{{status}}"),),
    ),
    Panel(
        "Errors",
        "percentunit",
        "Share of requests that ended with a status of 500 or above.",
        (
            (
                f"({_rate('foretell_requests_total', where=_FAILED)} or vector(0)) / "
                f"{_rate('foretell_requests_total')}",
                "5xx",
            ),
        ),
    ),
    Panel(
        "In progress",
        "short",
        "Requests that are being answered.",
        (("sum(foretell_requests_in_progress)", "requests"),),
    ),
    Panel(
        "TTFT",
        "s",
        "Time from placement to the first token.",
        _quantiles("foretell_ttft_seconds"),
    ),
    Panel(
        "TPOT", "s", "Time per output token after the first.", _quantiles("foretell_tpot_seconds")
    ),
    Panel(
        "End-to-end latency",
        "s",
        "Time from placement to the last token.",
        _quantiles("foretell_e2e_seconds"),
    ),
    Panel(
        "Goodput",
        "percentunit",
        "Share of the requests with targets that met them.",
        (
            (
                f"({_rate('foretell_slo_requests_total', where=_MET)} or vector(0)) / "
                f"{_rate('foretell_slo_requests_total')}",
                "within targets",
            ),
        ),
    ),
    Panel(
        "Tokens by tenant",
        "short",
        "Tokens of prompts and answers a second, by caller.",
        ((_rate("foretell_tenant_tokens_total", "tenant"), "{{tenant}}"),),
    ),
)
_ERROR_LEVELS = (0.1, 0.5, 0.9)
_PREDICTION = (
    Panel(
        "Error of TTFT",
        "percentunit",
        "(predicted - actual) / actual. The middle line is the bias, the others hold four fifths.",
        _quantiles("foretell_ttft_prediction_error_ratio", levels=_ERROR_LEVELS),
    ),
    Panel(
        "Error of end-to-end latency",
        "percentunit",
        "(predicted - actual) / actual.",
        _quantiles("foretell_e2e_prediction_error_ratio", levels=_ERROR_LEVELS),
    ),
    Panel(
        "Error of output lengths at placement",
        "percentunit",
        "(predicted - actual) / actual, of the expected length that placements counted with.",
        _quantiles("foretell_output_tokens_prediction_error_ratio", levels=_ERROR_LEVELS),
    ),
    Panel(
        "Error of the tagger",
        "percentunit",
        "(predicted - actual) / actual, of the lengths that the tagger told.",
        _quantiles("foretell_tagger_error_ratio", "source", (0.5, 0.9)),
    ),
    Panel(
        "Calibration of length quantiles",
        "percentunit",
        "Share of answers no longer than the believed median, P75 and P95. Each line belongs at "
        "the level that it is named after.",
        tuple(
            (
                f"{_rate('foretell_output_tokens_level_ratio_bucket', where=_at(level))}"
                f" / {_rate('foretell_output_tokens_level_ratio_count')}",
                f"{100 * level:g}%",
            )
            for level in (0.5, 0.75, 0.95)
        ),
    ),
    Panel(
        "Drift",
        "percentunit",
        "Median error of end-to-end latency of each instance: away from 0 for long, its "
        "predictions are off to one side.",
        _quantiles("foretell_e2e_prediction_error_ratio", "instance_id", (0.5,)),
    ),
    Panel(
        "Steps learned from",
        "short",
        "Engine steps that each predictor has calibrated its step times with.",
        _gauge("foretell_calibration_steps"),
    ),
    Panel(
        "Error of step times",
        "percentunit",
        "Mean absolute relative error over about the last 64 steps.",
        (("foretell_step_time_error_ratio", "{{instance}}"),),
    ),
    Panel(
        "Step times learned anew",
        "short",
        "Times in the last hour that an engine's step times changed for good.",
        (("increase(foretell_step_time_changes_total[1h])", "{{instance}}"),),
    ),
)
_ENGINES = (
    Panel(
        "Healthy",
        "short",
        "1 while health probes succeed, as the most pessimistic replica sees it.",
        (("min by (instance_id) (foretell_instance_healthy)", "{{instance_id}}"),),
    ),
    Panel("Running", "short", "Requests that run.", _gauge("foretell_running_requests")),
    Panel(
        "Waiting",
        "short",
        "Requests in the queue and on their way to it.",
        _gauge("foretell_waiting_requests"),
    ),
    Panel(
        "KV cache", "percentunit", "Share of KV blocks in use.", _gauge("foretell_kv_used_ratio")
    ),
    Panel(
        "Preemptions",
        "short",
        "Preemptions a second of requests that have ended.",
        ((f"rate(foretell_preemptions_total[{WINDOW}])", "{{instance}}"),),
    ),
    Panel(
        "Prefix cache hits",
        "percentunit",
        "Share of prompt tokens that the prefix cache held.",
        (
            (
                f"{_rate('foretell_cached_prompt_tokens_total', 'instance_id')} / "
                f"({_rate('foretell_prompt_tokens_total', 'instance_id')} > 0)",
                "{{instance_id}}",
            ),
        ),
    ),
    Panel(
        "Foretold TTFT",
        "s",
        "TTFT that a request with a prompt of 256 tokens would get if it came now.",
        _gauge("foretell_predicted_ttft_seconds"),
    ),
    Panel(
        "Foretold end-to-end latency",
        "s",
        "The same request, with an answer of 256 tokens.",
        _gauge("foretell_predicted_e2e_seconds"),
    ),
)
_PLACEMENT = (
    Panel(
        "Shares",
        "percentunit",
        "Share of the answers that each instance gave.",
        (
            (
                f"{_rate('foretell_e2e_seconds_count', 'instance_id')} / on() group_left() "
                f"{_ANSWERED}",
                "{{instance_id}}",
            ),
        ),
    ),
    Panel(
        "Time to place",
        "s",
        "What placing adds to a request's latency.",
        _quantiles("foretell_placement_seconds"),
    ),
    Panel(
        "Without answers",
        "short",
        "Answers of predictors a second that placements had to do without.",
        ((f"{_rate('foretell_degraded_total')} or vector(0)", "missing"),),
    ),
    Panel(
        "CPU of a request",
        "s",
        "CPU time of all schedulers for each request: placing, relaying and all else.",
        (
            (
                f"{_rate('foretell_process_cpu_seconds_total', where=_SCHEDULERS)} / "
                f"({_rate('foretell_requests_total')} > 0)",
                "schedulers",
            ),
        ),
    ),
    Panel(
        "Moved",
        "short",
        "Attempts a second that failed before a first token, and requests called back from a "
        "queue.",
        (
            (f"{_rate('foretell_retries_total')} or vector(0)", "failed"),
            (f"{_rate('foretell_recalls_total')} or vector(0)", "called back"),
        ),
    ),
    Panel(
        "Lengths revised",
        "percentunit",
        "Share of the tagger's answers that changed what was believed when a request was placed.",
        (
            (
                f"{_rate('foretell_lengths_revised_total')} / "
                f"({_rate('foretell_tagger_requests_total')} > 0)",
                "revised",
            ),
        ),
    ),
)
DASHBOARDS = (
    Dashboard("foretell-overview", "Overview", _OVERVIEW),
    Dashboard("foretell-prediction", "Prediction against reality", _PREDICTION),
    Dashboard("foretell-engines", "Engines", _ENGINES),
    Dashboard("foretell-placement", "Placement", _PLACEMENT),
)
