"""One run: simulates a trace on a cluster, and gives the results as JSON."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from foretell.model import EngineConfig, Slo
from foretell.policy import make_policy
from foretell.sim import Provisioning, Report, ServedRequest, check_fits, simulate
from foretell.tools.files import read_bytes
from foretell.tools.intervals import quantile
from foretell.tools.progress import progress
from foretell.tools.simulate.cluster import cluster_config, engine_facts
from foretell.tools.simulate.options import SimulateOptions
from foretell.workload import Arrival, Trace, arrivals_of, parse_csv, parse_mooncake
from foretell.workload.chats import PER_S as CHATS_PER_S
from foretell.workload.chats import chat_trace
from foretell.workload.request_log import MARK, parse_request_log

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Run:
    """The results of a simulation, and its options."""

    report: Report
    facts: dict[str, Any]
    targets: bool = False
    """Whether any request has targets."""

    def summary(self) -> dict[str, Any]:
        """What `foretell simulate` prints."""
        report = self.report
        several = [r for r in report.served if r.output_tokens > 1]
        result = {
            "ttft_s": moments([r.ttft_s for r in report.served]),
            "tpot_s": moments([r.tpot_s for r in several]),
            "e2e_s": moments([r.e2e_s for r in report.served]),
            "throughput_rps": round(report.throughput_rps, _DIGITS),
            "preemptions": report.preemptions,
            "free_blocks": {
                "mean": round(report.free_blocks_mean, _DIGITS),
                "var": round(report.free_blocks_var, _DIGITS),
            },
            "requests": len(report.served) + len(report.lost),
            "lost": len(report.lost),
            "retried": sum(r.attempts > 1 for r in report.served),
            "makespan_s": round(report.makespan_s, _DIGITS),
            "steps": report.steps,
        }
        if self.targets:
            result |= {
                "goodput_rps": round(report.goodput_rps, _DIGITS),
                "within_slo": round(report.within_slo, _DIGITS),
                "rejected": len(report.rejected),
            }
        if self.facts["prefix_caching"]:
            prompts = sum(r.prompt_tokens for r in report.served)
            cached = sum(r.cached_tokens for r in report.served)
            result["cached_prompt_ratio"] = round(cached / max(1, prompts), _DIGITS)
        errors = relative_errors(report.served)
        return {**result, **({"prediction_error": errors} if errors else {}), **self.facts}


def run(
    options: SimulateOptions,
    qps: float,
    seed: int,
    *,
    started: Callable[[int], None] = lambda requests: None,
    ended: Callable[[], None] = lambda: None,
    provisioning: Provisioning | None = None,
    trace: Trace | None = None,
) -> Run:
    """Simulate; raises ValueError if the options are wrong.

    `started` gets the number of requests, and `ended` is called after each. With `provisioning`,
    instances come and go. `trace` replaces the trace that the options name. Equal arguments give
    equal results.
    """
    trace = trace or read_trace(options.trace, options.trace_format)
    qps = qps or (0.0 if options.trace else CHATS_PER_S)
    prefixes = any(request.prefix for request in trace.requests)
    config = cluster_config(options, seed, prefixes=prefixes, trace=trace.requests)
    arrivals = online_arrivals(options, qps, seed, trace)
    engines = {instance.engine for instance in config.instances}
    fitting = [arrival for arrival in arrivals if fits(arrival, engines)]
    if not fitting:
        raise ValueError("none of the requests fits into every engine")
    span_s = arrivals[-1].t_s - arrivals[0].t_s
    config = replace(config, provisioning=provisioning)
    started(len(fitting))
    policies = [make_policy(options.policy) for _ in range(options.schedulers)]
    report = simulate(config, fitting, policies, Random(f"{seed} cluster"), ended=ended)
    facts = {
        "refused": len(arrivals) - len(fitting),
        "policy": options.policy,
        "qps": qps or round((len(arrivals) - 1) / span_s, _DIGITS) if span_s else qps,
        "seed": seed,
        "trace": Path(options.trace).name or "chats",
        "profile": ",".join(f"{engine.profile}x{engine.instances}" for engine in options.engines),
        "engines": [engine_facts(engine, options) for engine in options.engines],
        "prefix_caching": config.prefix_cache,
        "estimates": options.estimates,
        "schedulers": options.schedulers,
        "faults": list(options.faults),
    }
    targets = any(arrival.slo.given for arrival in fitting)
    if provisioning is not None:
        facts["provisioning"] = _provisioned(report)
    if targets:
        facts["reject_late"] = options.reject_late
    return Run(report, facts, targets)


def _provisioned(report: Report) -> dict[str, Any]:
    """Results of provisioning: instance-hours up to the last arrival, sizes, starts and drains."""
    sizes = report.sizes
    return {
        "instance_hours": round(report.instance_s / 3600.0, _DIGITS),
        "instances": {
            "first": sizes[0].instances,
            "most": max(size.instances for size in sizes),
            "last": sizes[-1].instances,
        },
        "started": sum(decision.start for decision in report.decisions),
        "drained": sum(len(decision.drain) for decision in report.decisions),
    }


def online_arrivals(
    options: SimulateOptions, qps: float, seed: int, trace: Trace | None = None
) -> list[Arrival]:
    """The options' requests in the order of arrival; `trace` replaces that of the options."""
    trace = trace or read_trace(options.trace, options.trace_format)
    qps = qps or (0.0 if options.trace else CHATS_PER_S)
    draws = Random(f"{seed} trace")
    arrivals = arrivals_of(trace, draws, count=options.requests, qps=qps, cv=options.cv)
    return [with_targets(arrival, options) for arrival in arrivals]


def run_showing_progress(
    options: SimulateOptions,
    qps: float,
    seed: int,
    *,
    provisioning: Provisioning | None = None,
) -> Run:
    """`run`, with a progress bar on stderr."""
    with progress() as bar:
        task = bar.add_task(options.policy, total=None)
        return run(
            options,
            qps,
            seed,
            started=lambda requests: bar.update(task, total=requests),
            ended=lambda: bar.advance(task),
            provisioning=provisioning,
        )


def with_targets(arrival: Arrival, options: SimulateOptions) -> Arrival:
    """The arrival with the options' targets, or the trace's if there are none."""
    slo = Slo(options.ttft_slo_s or arrival.slo.ttft_s, options.tpot_slo_s or arrival.slo.tpot_s)
    return replace(arrival, slo=slo)


@lru_cache(maxsize=4)
def read_trace(path: str, trace_format: str) -> Trace:
    """The trace in a file, which may be gzipped, or the shipped chats if `path` is empty. Raises
    ValueError if there is none."""
    if not path:
        return chat_trace()
    parsers = {"csv": parse_csv, "mooncake": parse_mooncake, "log": parse_request_log}
    try:
        lines = read_bytes(Path(path)).decode().splitlines()
        if trace_format == "auto":
            trace_format = _format_of(path, lines)
        return parsers[trace_format](lines)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _format_of(path: str, lines: Sequence[str]) -> str:
    if ".jsonl" not in Path(path).suffixes:
        return "csv"
    return "log" if lines and f'"{MARK}"' in lines[0] else "mooncake"


def fits(arrival: Arrival, engines: Iterable[EngineConfig]) -> bool:
    """Whether every engine could serve it; one that could not would refuse it."""
    try:
        for engine in engines:
            check_fits(arrival, engine)
    except ValueError:
        return False
    return True


def moments(values: Sequence[float]) -> dict[str, float]:
    """Mean and quantiles; empty if there are no values."""
    if not values:
        return {}
    levels = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = {"mean": fmean(values)}
    values = sorted(values)  # sorted once: `quantile` sorts again, at little cost
    found |= {name: quantile(values, level) for name, level in levels.items()}
    return {name: round(value, _DIGITS) for name, value in found.items()}


def relative_errors(served: Sequence[ServedRequest]) -> dict[str, float]:
    """Mean |predicted - actual| / actual of the chosen instances' predictions, which count from
    placement; empty if there are none."""
    pairs = [(r.predicted, r) for r in served if r.predicted is not None and r.attempts == 1]
    if not pairs:
        return {}
    return {
        "ttft_mape": round(fmean(_error(p.ttft_s, r.ttft_s, r) for p, r in pairs), _DIGITS),
        "e2e_mape": round(fmean(_error(p.e2e_s, r.e2e_s, r) for p, r in pairs), _DIGITS),
    }


def _error(predicted_s: float, latency_s: float, request: ServedRequest) -> float:
    """Relative error of a latency; predictions count from placement, actual ones from arrival."""
    actual_s = request.arrival_s + latency_s - request.placed_s
    return abs(predicted_s - actual_s) / actual_s
