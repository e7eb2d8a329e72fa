"""An approximate bound on what placement can gain: all engines of a cluster as one.

The pool has one queue and all seats, KV blocks and cached prefixes; all engines share its steps
equally. No request is faster there than alone on an engine, since one engine computes a prompt.
Engines of several kinds count as the number of engines of the fastest kind that decode as fast;
while one is slowed down, the pool is slower by its part. Beyond the capacity a policy may do
better, if it lets short requests go first.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from foretell.latency.linear import LinearStepTime, StepTimeModel
from foretell.latency.tables import TabularStepTime
from foretell.model import BatchShape, Curve, EngineConfig, GpuProfile, Grid
from foretell.model.batch import prefill_pairs
from foretell.policy import make_policy
from foretell.sim import Fault, FaultKind, Report, ServedRequest, SimInstanceConfig, simulate
from foretell.tools.profiles.imports import profile_of, with_graphs
from foretell.tools.simulate.cluster import cluster_config
from foretell.tools.simulate.options import SimulateOptions
from foretell.workload import Arrival


def pooled(options: SimulateOptions, arrivals: Sequence[Arrival], seed: int) -> Report:
    """Simulate the pool of the options' engines, which serves the arrivals in their order."""
    prefixes = any(arrival.prefix for arrival in arrivals)
    config = cluster_config(options, seed, prefixes=prefixes, trace=arrivals)
    busy = BatchShape(decode_seqs=16, decode_pairs=16_000)
    fastest = min(config.instances, key=lambda one: one.step_time.step_s(busy))
    kinds = [each.profile for each in options.engines for _ in range(each.instances)]
    profile = profile_of(kinds[config.instances.index(fastest)])
    engine = _pool_of([one.engine for one in config.instances], fastest.engine)
    profile = with_graphs(profile, fastest.engine.max_num_seqs)
    least_s = fastest.step_time.step_s(busy)
    paces = [least_s / one.step_time.step_s(busy) for one in config.instances]
    steps = _shared(profile, sum(paces))
    faults = tuple(_of_the_pool(fault, paces) for fault in config.faults)
    one = replace(config, instances=(SimInstanceConfig(engine, steps),), faults=faults)
    report = simulate(one, arrivals, [make_policy("round_robin")], Random(f"{seed} cluster"))
    delay_s = config.dispatch_delay_s
    return replace(report, served=tuple(_not_before(s, fastest, delay_s) for s in report.served))


def _of_the_pool(fault: Fault, paces: Sequence[float]) -> Fault:
    """The pool's fault for one slower engine, of these paces; ValueError for other faults."""
    if fault.kind is not FaultKind.SLOW:
        raise ValueError(f"a pool knows no {fault.kind.value}")
    whole, slow = sum(paces), paces[fault.instance]
    return replace(fault, instance=0, factor=whole / (whole - slow + slow / fault.factor))


def _pool_of(engines: Sequence[EngineConfig], one: EngineConfig) -> EngineConfig:
    return replace(
        one,
        max_num_seqs=sum(each.max_num_seqs for each in engines),
        max_num_scheduled_tokens=sum(each.max_num_scheduled_tokens for each in engines),
        total_blocks=sum(each.total_blocks for each in engines),
    )


def _shared(profile: GpuProfile, engines: float) -> StepTimeModel:
    """Step times of this number of engines that share each step equally."""
    tables = profile.tables
    if tables is None:
        step_s, *each_s = profile.coefficients_s
        return LinearStepTime((step_s, *[seconds / engines for seconds in each_s]))

    def wider(curve: Curve) -> Curve:
        return replace(curve, x=tuple(engines * x for x in curve.x))

    (sequences, contexts), prefill = tables.decode.axes, tables.prefill
    return TabularStepTime(
        replace(
            tables,
            tokens=wider(tables.tokens),
            sequences=wider(tables.sequences),
            prefill=Grid(prefill.axes, tuple(seconds / engines for seconds in prefill.seconds)),
            decode=replace(
                tables.decode, axes=(tuple(engines * count for count in sequences), contexts)
            ),
            mixed=None,
            graph_sizes=tuple(int(engines * size) for size in tables.graph_sizes),
        )
    )


def _not_before(served: ServedRequest, alone: SimInstanceConfig, delay_s: float) -> ServedRequest:
    """The request with at least the latencies of an idle engine that has the same prefix cached."""
    steps, most = alone.step_time, alone.engine.max_num_scheduled_tokens
    ttft_s, done = delay_s, served.cached_tokens
    while done < served.prompt_tokens:
        chunk = min(most, served.prompt_tokens - done)
        ttft_s += steps.step_s(BatchShape(1, chunk, prefill_pairs(chunk, done)))
        done += chunk
    first = BatchShape(0, 0, 0, 1, served.prompt_tokens + 1)
    e2e_s = ttft_s + steps.decode_run_s(first, served.output_tokens - 1)
    return replace(served, ttft_s=max(served.ttft_s, ttft_s), e2e_s=max(served.e2e_s, e2e_s))
