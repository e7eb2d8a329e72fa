"""The options that both commands take."""

from pathlib import Path
from typing import Annotated

import typer

Trace = Annotated[Path, typer.Option(help="CSV or Mooncake JSONL, .gz or not.", show_default=False)]
Format = Annotated[str, typer.Option("--format", help="Of the trace: auto, csv or mooncake.")]
Profile = Annotated[
    list[str],
    typer.Option(
        help="GPU profile, a shipped name or a file; several as P1xN1,P2xN2.", show_default=False
    ),
]
Instances = Annotated[int, typer.Option(min=0, help="Engines of the one profile; 0: one.")]
Policy = Annotated[str, typer.Option(help="Placement policy.")]
Requests = Annotated[int, typer.Option(min=0, help="Requests; 0: all of the trace.")]
Cv = Annotated[
    float, typer.Option(min=0.01, help="Of the gaps between arrivals without times; 1: Poisson.")
]
Estimates = Annotated[
    str,
    typer.Option(help="Of output lengths: true, told by the trace, or noise:SIGMA (of the log)."),
]
LengthRule = Annotated[
    str, typer.Option(help="How predictors believe estimates: survival or block.")
]
Schedulers = Annotated[int, typer.Option(min=1, help="Scheduler replicas.")]
Candidates = Annotated[int, typer.Option(min=0, help="Predictors asked for one placement; 0: all.")]
MaxNumSeqs = Annotated[
    list[int] | None,
    typer.Option(min=1, help="As vLLM's; once, or once a profile. Default: the profile's."),
]
MaxNumBatchedTokens = Annotated[list[int] | None, typer.Option(min=1, help="The same.")]
NumBlocks = Annotated[
    list[int] | None, typer.Option(min=1, help="KV blocks that requests can use; the same.")
]
BlockSize = Annotated[list[int] | None, typer.Option(min=1, help="Tokens of a block; the same.")]
MaxModelLen = Annotated[list[int] | None, typer.Option(min=1, help="The same.")]
AsyncScheduling = Annotated[
    bool, typer.Option("--async-scheduling/--no-async-scheduling", help="As vLLM's.")
]
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="As vLLM's; matters where the trace names its prompts' blocks.",
    ),
]
TtftSloS = Annotated[
    float, typer.Option(min=0, help="TTFT target of every request; 0: the trace's, if it has any.")
]
TpotSloS = Annotated[float, typer.Option(min=0, help="TPOT target; the same.")]
RejectLate = Annotated[
    bool,
    typer.Option(
        "--reject-late", help="Do not admit what no instance can begin to answer in time."
    ),
]
SchedulingPolicy = Annotated[
    str, typer.Option(help="As vLLM's: fcfs, or priority, which the trace may name.")
]
LargestLast = Annotated[
    float,
    typer.Option(min=0, max=0.5, help="Ratio of requests, the largest, that engines serve last."),
]
PublishIntervalS = Annotated[
    float, typer.Option(min=0, help="Least seconds between two snapshots; 0: every change.")
]
DispatchDelayS = Annotated[float, typer.Option(min=0, help="From a choice to the engine's queue.")]
TaggerDelayS = Annotated[float, typer.Option(min=0, help="Until the length is estimated.")]
NetworkDelayS = Annotated[float, typer.Option(min=0, help="From scheduler to predictor, and back.")]
Fault = Annotated[
    list[str] | None,
    typer.Option(help="KIND:INSTANCE:AT_S[:FOR_S]: crash, slow[=FACTOR], mute or dead-predictor."),
]
