"""The options that `foretell simulate` and `foretell capacity` share."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tools.simulate.options import SimulateOptions, parse_engines

INSTALL = "pip install -e '.[profiles]' in the checkout"
_PER_ENGINE = "Give it once, or once for each profile; the default is the profile's."


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """A cluster and its requests; a field for each option."""

    trace: Annotated[
        Path,
        typer.Option(help="CSV or Mooncake JSON lines, gzipped or not.", show_default=False),
    ]
    profile: Annotated[
        list[str],
        typer.Option(
            help="GPU profile, a shipped name or a file; several as P1xN1,P2xN2.",
            show_default=False,
        ),
    ]
    policy: Annotated[str, typer.Option(help="Placement policy.")] = "slo"
    instances: Annotated[
        int, typer.Option(min=0, help="Number of engines, where there is one profile; 0: one.")
    ] = 0
    requests: Annotated[
        int, typer.Option(min=0, help="Number of requests; 0: as many as the trace has.")
    ] = 0
    trace_format: Annotated[
        str, typer.Option("--format", help="Format of the trace: auto, csv or mooncake.")
    ] = "auto"
    cv: Annotated[
        float,
        typer.Option(
            min=0.01,
            help="Coefficient of variation of the gaps between arrivals, where the trace has no "
            "times; 1 is a Poisson process.",
        ),
    ] = 1.0
    estimates: Annotated[
        str,
        typer.Option(
            help="Estimates of output lengths: true; told, by the trace; or noise:SIGMA, where "
            "SIGMA is the standard deviation of the logarithm."
        ),
    ] = "true"
    length_rule: Annotated[
        str,
        typer.Option(help="How predictors take estimates: survival (a distribution) or block."),
    ] = "survival"
    schedulers: Annotated[int, typer.Option(min=1, help="Number of scheduler replicas.")] = 1
    candidates: Annotated[
        int, typer.Option(min=0, help="Predictors asked for one placement; 0: all.")
    ] = 0
    max_num_seqs: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_num_seqs. {_PER_ENGINE}")
    ] = None
    max_num_batched_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_num_batched_tokens. {_PER_ENGINE}")
    ] = None
    num_blocks: Annotated[
        list[int] | None, typer.Option(min=1, help=f"Usable KV blocks. {_PER_ENGINE}")
    ] = None
    block_size: Annotated[
        list[int] | None, typer.Option(min=1, help=f"Tokens of a KV block. {_PER_ENGINE}")
    ] = None
    max_model_len: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_model_len. {_PER_ENGINE}")
    ] = None
    async_scheduling: Annotated[
        bool,
        typer.Option("--async-scheduling/--no-async-scheduling", help="vLLM's async scheduling."),
    ] = True
    prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="vLLM's prefix caching; matters where the trace names its prompts' blocks.",
        ),
    ] = True
    publish_interval_s: Annotated[
        float, typer.Option(min=0, help="Least seconds between two snapshots; 0: every change.")
    ] = 0.0
    dispatch_delay_s: Annotated[
        float, typer.Option(min=0, help="Seconds from a choice to the engine's queue.")
    ] = 0.002
    tagger_delay_s: Annotated[
        float, typer.Option(min=0, help="Seconds until a request's length is estimated.")
    ] = 0.0
    network_delay_s: Annotated[
        float, typer.Option(min=0, help="Seconds from scheduler to predictor, and back.")
    ] = 0.0
    ttft_slo_s: Annotated[
        float, typer.Option(min=0, help="TTFT target of every request; 0: the trace's, if any.")
    ] = 0.0
    tpot_slo_s: Annotated[
        float, typer.Option(min=0, help="TPOT target of every request; 0: the trace's, if any.")
    ] = 0.0
    reject_late: Annotated[
        bool,
        typer.Option("--reject-late", help="Reject requests that no instance can answer in time."),
    ] = False
    scheduling_policy: Annotated[
        str, typer.Option(help="vLLM's scheduling policy: fcfs, or priority by the trace.")
    ] = "fcfs"
    largest_last: Annotated[
        float,
        typer.Option(min=0, max=0.5, help="Ratio of the largest requests that are served last."),
    ] = 0.0
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="KIND:INSTANCE:AT_S[:FOR_S]; crash, slow[=FACTOR], mute or dead-predictor."
        ),
    ] = None

    def options(self) -> SimulateOptions:
        """What the simulator is given; ValueError where options contradict each other."""
        limits = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size")
        given = {name: getattr(self, name) or [] for name in (*limits, "max_model_len")}
        common = {field.name for field in fields(self)} & {f.name for f in fields(SimulateOptions)}
        return SimulateOptions(
            **{name: getattr(self, name) for name in common - {"trace"}},
            trace=str(self.trace),
            engines=parse_engines(self.profile, self.instances, given),
            faults=tuple(self.fault or ()),
        )


def fail(command: str, error: Exception) -> NoReturn:
    """End the command with a message."""
    typer.echo(f"{command}: {error}", err=True)
    raise typer.Exit(1)
