"""The tables of `bench.placement.real_cluster`."""

from collections.abc import Sequence
from statistics import StatisticsError, correlation, fmean
from typing import Any

from bench.placement.a30 import DESCRIPTION
from bench.report import Blocks, Numbers, made_by, markdown_table

METRICS = {
    "ttft_mean_s": "mean TTFT, s",
    "ttft_p99_s": "P99 TTFT, s",
    "e2e_mean_s": "mean e2e, s",
    "e2e_p99_s": "P99 e2e, s",
    "preemptions": "preemptions",
}


def tables(page: Numbers) -> Blocks:
    """A table for each metric, rank correlations, and what happened meanwhile."""
    real: dict[str, dict[str, Any]] = page["real"]
    simulated: dict[str, list[dict[str, float]]] = page["simulated"]
    lines = [
        made_by(page),
        f"{page['instances']} {DESCRIPTION}, at "
        f"{page['speedup']:g} times the profile's speed; {page['requests']:,} requests with real "
        f"lengths, which are told as hints; Poisson arrivals at {page['qps']:g} a second, seed "
        f"{page['seed']}. Seconds are the profile's. *Simulated* is the mean of "
        f"{page['simulations']} runs of the very same arrivals that differ in all other draws, "
        "with the least and the most in brackets.\n",
    ]
    for metric, title in METRICS.items():
        lines.append(
            markdown_table((title, "real", "simulated", "difference"), _rows(page, metric))
        )
    ranks = [
        (title, _or_blank(rank_correlation(*_pair(real, simulated, metric))))
        for metric, title in METRICS.items()
    ]
    lines.append("**Spearman's rank correlation of the policies, real against simulated**\n")
    lines.append(markdown_table(("", "rho"), ranks))
    lines.append("**What the real cluster did meanwhile**\n")
    lines.append(_meanwhile(real))
    return {"tables": "\n".join(lines)}


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equals share their mean rank. None where all are equal."""
    try:
        return correlation(_ranks(xs), _ranks(ys))
    except StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def _pair(
    real: dict[str, dict[str, Any]], simulated: dict[str, list[dict[str, float]]], metric: str
) -> tuple[list[float], list[float]]:
    """A metric of all policies, real and simulated."""
    means = [fmean(run[metric] for run in simulated[policy]) for policy in real]
    return [one[metric] for one in real.values()], means


def _rows(page: dict[str, Any], metric: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    digits = 0 if metric == "preemptions" else 2
    for policy, one in page["real"].items():
        values = [run[metric] for run in page["simulated"][policy]]
        mean, measured = fmean(values), one[metric]
        span = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
        difference = f"{measured - mean:+.{digits}f}"
        if metric != "preemptions":
            difference += f" ({measured / mean - 1:+.0%})"
        rows.append((policy, f"{measured:.{digits}f}", f"{mean:.{digits}f} ({span})", difference))
    return rows


def _meanwhile(real: dict[str, dict[str, Any]]) -> str:
    header = (
        "",
        "cores busy",
        "of which others",
        "steps longer than due",
        "their P99",
        "sent late, P99 ms",
        "placement, median ms",
        "P99 ms",
        "dispatch delay, ms",
        "placed without",
    )
    rows = [
        (
            policy,
            f"{one['cores_busy']:.2f}",
            f"{one['others_cores']:.2f}",
            f"{one['step_lateness']:+.1%}",
            f"{one['step_lateness_p99']:+.0%}",
            *(
                f"{1e3 * one[name]:.1f}"
                for name in (
                    "sent_late_p99_s",
                    "placement_p50_s",
                    "placement_p99_s",
                    "dispatch_delay_s",
                )
            ),
            ", ".join(f"{count} {what}" for what, count in one["degraded"].items()) or "nothing",
        )
        for policy, one in real.items()
    ]
    return markdown_table(header, rows)


def _or_blank(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"
