"""The fewest engines of each kind that keep a trace's targets, by simulation."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from os import cpu_count
from statistics import fmean
from typing import Any

from foretell.tools.progress import side_by_side
from foretell.tools.simulate.offline_left import OfflineLeft, offline_left
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.simulate.run import run

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The requirements of plans, and what is tried."""

    kinds: tuple[EngineOptions, ...]
    """Each with one instance."""
    qps: float
    """Requests a second; 0: at the times of the trace."""
    within: float
    """Least ratio of all requests that must meet their targets, with every seed."""
    seeds: tuple[int, ...]
    most: int
    """The most engines of a kind that are tried."""
    prices: dict[str, float]
    """Price of an engine for an hour, by profile; may lack some."""
    offline: str = ""
    """Trace of offline requests to serve beside the online ones; empty: none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result for one kind of engine."""

    profile: str
    max_num_seqs: int
    max_num_batched_tokens: int
    instances: int
    """0: not even the most that were tried keep the targets."""
    within: float
    """The ratio of requests within their targets with `instances`, or with the most; worst seed."""
    ttft_p99_s: float
    free_kv_ratio: float
    """The mean share of the KV cache that is free, for offline work."""
    price: float | None
    """The price of all instances for an hour."""
    offline_tokens_per_s: float | None = None
    """Output tokens per second of offline requests during the trace, the mean of the seeds; None:
    not asked for, or the instances are too few."""
    within_beside: float | None = None
    """The ratio of online requests within their targets beside offline ones; the worst seed."""


def kinds_of(
    profiles: Sequence[str], max_num_seqs: Sequence[int], max_num_batched_tokens: Sequence[int]
) -> tuple[EngineOptions, ...]:
    """Every profile with every one of the limits; a limit of 0 is the profile's."""
    limits = product(max_num_seqs or (0,), max_num_batched_tokens or (0,))
    pairs = product(profiles, list(limits))
    return tuple(EngineOptions(name, 1, seqs, tokens) for name, (seqs, tokens) in pairs)


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Prices given as PROFILE=PRICE; ValueError if one is not."""
    found = {}
    for text in texts:
        name, _, price = text.rpartition("=")
        try:
            found[name] = float(price)
        except ValueError:
            raise ValueError(f"--price {text}: give PROFILE=PRICE") from None
        if not name or found[name] < 0:
            raise ValueError(f"--price {text}: give PROFILE=PRICE")
    return found


def make_plans(options: SimulateOptions, plan: PlanOptions, processes: int = 0) -> list[Plan]:
    """A plan for each kind, the cheapest or else the smallest first; ValueError if the options are
    wrong."""
    workers = min(processes or cpu_count() or 1, len(plan.kinds))
    work = partial(_plan_for, options=options, plan=plan)
    return in_order(list(side_by_side(work, plan.kinds, workers, "kinds")))


def in_order(plans: Sequence[Plan]) -> list[Plan]:
    """Plans that keep the targets first, then by price or, if one is missing, by size."""
    priced = all(each.price is not None for each in plans)
    return sorted(plans, key=lambda p: (p.instances == 0, p.price if priced else p.instances))


def _plan_for(kind: EngineOptions, options: SimulateOptions, plan: PlanOptions) -> Plan:
    tried: dict[int, dict[str, float]] = {}

    def keeps(instances: int) -> bool:
        given = replace(options, engines=(replace(kind, instances=instances),))
        runs = [run(given, plan.qps, seed) for seed in plan.seeds]
        if not all(each.targets for each in runs):
            raise ValueError("a plan needs targets: --ttft-slo-s, --tpot-slo-s, or the trace's")
        summaries = [each.summary() for each in runs]
        blocks = runs[0].facts["engines"][0]["num_blocks"]
        tried[instances] = {
            "within": min(each["within_slo"] for each in summaries),
            "ttft_p99_s": max(each["ttft_s"]["p99"] for each in summaries),
            "free_kv_ratio": fmean(each["free_blocks"]["mean"] for each in summaries) / blocks,
        }
        return tried[instances]["within"] >= plan.within

    instances = fewest(keeps, plan.most)
    figures = tried[instances or plan.most]
    price = plan.prices.get(kind.profile)
    left: list[OfflineLeft] = []
    if plan.offline and instances:
        given = replace(options, engines=(replace(kind, instances=instances),))
        left = [offline_left(given, plan.qps, seed, plan.offline) for seed in plan.seeds]
    return Plan(
        kind.profile,
        kind.max_num_seqs,
        kind.max_num_batched_tokens,
        instances,
        **{name: round(value, _DIGITS) for name, value in figures.items()},
        price=None if price is None else round((instances or plan.most) * price, _DIGITS),
        offline_tokens_per_s=round(fmean(o.tokens_per_s for o in left), 1) if left else None,
        within_beside=round(min(o.within for o in left), _DIGITS) if left else None,
    )


def fewest(keeps: Callable[[int], bool], most: int) -> int:
    """The least number from 1 to `most` that `keeps`, assuming more are never worse; 0: none."""
    high = 1
    while not keeps(high):
        if high == most:
            return 0
        high = min(2 * high, most)
    low = high // 2  # known not to, or 0
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high


def as_json(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Plain data of all plans."""
    return [asdict(each) for each in plans]


def show(plans: Sequence[Plan]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("profile", "max_num_seqs", "max_num_batched_tokens")
    titles = ("instances", "within targets", "P99 TTFT, s", "KV cache free", "price an hour")
    beside = any(each.offline_tokens_per_s is not None for each in plans)
    for title in (*titles, *(("offline tokens/s", "within beside") if beside else ())):
        table.add_column(title, justify="right")
    for each in plans:
        asked = each.offline_tokens_per_s is not None
        left = (f"{each.offline_tokens_per_s:,.0f}", f"{each.within_beside:.2%}") if asked else ()
        table.add_row(
            each.profile,
            str(each.max_num_seqs or "profile's"),
            str(each.max_num_batched_tokens or "profile's"),
            str(each.instances or "too few"),
            f"{each.within:.2%}",
            f"{each.ttft_p99_s:.2f}",
            f"{each.free_kv_ratio:.0%}",
            "" if each.price is None else f"{each.price:,.2f}",
            *left,
        )
    Console().print(table)
