"""`foretell capacity`: find the highest rate that a simulated cluster sustains."""

import json
from typing import Annotated

import typer

from cli.simulate import INSTALL, fail, options_from
from tools.simulate import arguments as given


def capacity(
    context: typer.Context,
    trace: given.Trace,
    profile: given.Profile,
    policy: given.Policy = "slo",
    instances: given.Instances = 0,
    ttft_p99_s: Annotated[float, typer.Option(min=0.001, help="The bound.")] = 3.0,
    goodput: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Instead of that bound: the ratio of all requests that must meet their targets.",
        ),
    ] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1 to this; each gets its own.")] = 5,
    tolerance: Annotated[
        float, typer.Option(min=0.0001, help="Relative width at which a search ends.")
    ] = 0.01,
    start_qps: Annotated[
        float, typer.Option(min=0, help="Where searches start; 0: one per instance.")
    ] = 0.0,
    processes: Annotated[int, typer.Option(min=0, help="At once; 0: one per core.")] = 0,
    requests: given.Requests = 0,
    trace_format: given.Format = "auto",
    cv: given.Cv = 1.0,
    estimates: given.Estimates = "true",
    length_rule: given.LengthRule = "survival",
    schedulers: given.Schedulers = 1,
    candidates: given.Candidates = 0,
    max_num_seqs: given.MaxNumSeqs = None,
    max_num_batched_tokens: given.MaxNumBatchedTokens = None,
    num_blocks: given.NumBlocks = None,
    block_size: given.BlockSize = None,
    max_model_len: given.MaxModelLen = None,
    async_scheduling: given.AsyncScheduling = True,
    prefix_caching: given.PrefixCaching = True,
    publish_interval_s: given.PublishIntervalS = 0.0,
    dispatch_delay_s: given.DispatchDelayS = 0.002,
    tagger_delay_s: given.TaggerDelayS = 0.0,
    network_delay_s: given.NetworkDelayS = 0.0,
    ttft_slo_s: given.TtftSloS = 0.0,
    tpot_slo_s: given.TpotSloS = 0.0,
    reject_late: given.RejectLate = False,
    scheduling_policy: given.SchedulingPolicy = "fcfs",
    largest_last: given.LargestLast = 0.0,
    fault: given.Fault = None,
) -> None:
    """Find the highest rate at which the P99 of TTFT stays within a bound, or most requests meet
    their targets; JSON."""
    options = options_from(context)
    try:
        from tools.simulate.capacity import Search, find_capacity
    except ImportError as error:
        fail("capacity", ImportError(f"{error}; {INSTALL}"))
    search = Search(
        bound_s=ttft_p99_s,
        goodput=goodput,
        seeds=tuple(range(1, seeds + 1)),
        start_qps=start_qps or float(options.instances),
        tolerance=tolerance,
    )
    try:
        found = find_capacity(options, search, processes)
    except ValueError as error:
        fail("capacity", error)
    typer.echo(json.dumps(found, indent=2))
