"""What would be if a cluster were another: the latest arrivals again, on changed engines.

The arrivals come twice. The first time fills the engines, about as they are filled now; the second
time is what is told of. So the answer is of the next minutes, if they bring what the last ones did.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import floor
from statistics import fmean

from foretell.kernel.step_time import StepTime
from foretell.latency.linear import StepTimeModel
from foretell.model import EngineConfig, LengthEstimate, Slo
from foretell.policy import Policy
from foretell.sim.accuracy import quantile
from foretell.sim.cluster import check_fits, simulate
from foretell.sim.config import ClusterConfig, InstanceConfig
from foretell.workload import Arrival, Draws

MOST_ARRIVALS = 1000
"""Requests that come in one pass at most; of more, the latest."""


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """One engine, and how long its steps are believed to take."""

    config: EngineConfig
    step_time: StepTime


@dataclass(frozen=True, slots=True)
class Situation:
    """The engines of one model as they are now, and what was asked of them lately."""

    engines: Sequence[KnownEngine]
    arrivals: Sequence[Arrival]
    """In their order; `output_tokens` are the true ones, `length` is what was believed."""
    span_s: float
    """The time in which they came, at least that from the first to the last."""


@dataclass(frozen=True, slots=True)
class Change:
    """What shall be different."""

    instances: int = 0
    """So many engines more, each like the first one; negative: fewer, the last ones go."""
    max_num_seqs: int = 0
    """The limit of every engine; 0: as it is."""
    traffic: float = 1.0
    """So many times the requests."""


@dataclass(frozen=True, slots=True)
class Met:
    """The latencies of one request in seconds, and its targets."""

    ttft_s: float
    e2e_s: float
    output_tokens: int
    slo: Slo


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies in seconds and rates of some requests."""

    requests: int
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    tpot_mean_s: float
    goodput_rps: float
    """Requests within their targets a second; those that have none count as within."""
    within_ratio: float


def what_if(
    situation: Situation,
    change: Change,
    policy: Callable[[], Policy],
    draws: Draws,
    *,
    scale: float = 1.0,
) -> Outcome:
    """The outcome with a change; ValueError where there is nothing to be told.

    `scale` times the arrivals of the situation is the traffic as it is, that of other replicas
    included. Equal arguments give equal outcomes.
    """
    engines = _changed(situation.engines, change)
    before = times(situation, scale)
    again = times(situation, scale * change.traffic)
    arrivals = [replace(a, request_id=f"before {i}") for i, a in enumerate(before)]
    for number, arrival in enumerate(again):
        later_s = arrival.t_s + situation.span_s
        arrivals.append(replace(arrival, request_id=f"again {number}", t_s=later_s))
    fitting = [each for each in arrivals if _fits(each, engines)]
    config = ClusterConfig(
        instances=tuple(InstanceConfig(e.config, StepTimeModel(e.step_time)) for e in engines),
        estimate=_believed,
        foretell_every=0,
    )
    report = simulate(config, fitting, [policy()], draws)
    found = [
        Met(one.ttft_s, one.e2e_s, one.output_tokens, one.slo)
        for one in report.served
        if one.request_id.startswith("again")
    ]
    return outcome(found, situation.span_s)


def outcome(found: Sequence[Met], span_s: float) -> Outcome:
    """The figures of requests that came within `span_s`; ValueError where there are none."""
    if not found:
        raise ValueError("no request was answered to its end lately")
    tpots = [_tpot_s(each) for each in found]
    within = sum(
        each.slo.met(each.ttft_s, tpot_s) for each, tpot_s in zip(found, tpots, strict=True)
    )
    ttfts, e2es = [each.ttft_s for each in found], [each.e2e_s for each in found]
    return Outcome(
        len(found),
        quantile(ttfts, 0.5),
        quantile(ttfts, 0.99),
        quantile(e2es, 0.5),
        quantile(e2es, 0.99),
        fmean(tpots),
        within / span_s,
        within / len(found),
    )


def times(situation: Situation, factor: float) -> list[Arrival]:
    """`factor` times the requests in the same time, at most `MOST_ARRIVALS`, in their order.

    The copies of a request come one after the other, spread over the whole time.
    """
    first_s = situation.arrivals[0].t_s if situation.arrivals else 0.0
    found = []
    for number, arrival in enumerate(situation.arrivals):
        copies = floor((number + 1) * factor) - floor(number * factor)
        for copy in range(copies):
            since_s = arrival.t_s - first_s + situation.span_s * copy / copies
            found.append(replace(arrival, t_s=since_s % situation.span_s))
    found.sort(key=lambda each: each.t_s)
    return found[-MOST_ARRIVALS:]


def _changed(engines: Sequence[KnownEngine], change: Change) -> list[KnownEngine]:
    count = len(engines) + change.instances
    if not engines or count < 1:
        raise ValueError("no engine would be left")
    found = [*engines, *[engines[0]] * change.instances][:count]
    seats = change.max_num_seqs
    if not seats:
        return found
    return [
        replace(each, config=replace(each.config, max_num_seqs=seats, max_num_active_seqs=0))
        for each in found
    ]


def _believed(arrival: Arrival) -> LengthEstimate:
    return arrival.length or LengthEstimate(float(arrival.output_tokens))


def _fits(arrival: Arrival, engines: Sequence[KnownEngine]) -> bool:
    try:
        for engine in engines:
            check_fits(arrival, engine.config)
    except ValueError:
        return False
    return True


def _tpot_s(met: Met) -> float:
    return (met.e2e_s - met.ttft_s) / max(1, met.output_tokens - 1)
