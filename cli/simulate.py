"""`foretell simulate`: run a cluster in virtual time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tools.simulate import arguments as given
from tools.simulate.options import SimulateOptions, options_of

if TYPE_CHECKING:
    from tools.simulate.run import Run

INSTALL = "pip install 'foretell[profiles]'"


def simulate(
    context: typer.Context,
    trace: given.Trace,
    profile: given.Profile,
    policy: given.Policy = "slo",
    instances: given.Instances = 0,
    qps: Annotated[
        float, typer.Option(min=0, help="Requests a second; 0: as the trace's times have it.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 1,
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
    draw: Annotated[Path | None, typer.Option(help="Picture to write, .png or .svg.")] = None,
) -> None:
    """Run a cluster in virtual time and print what came of it as JSON."""
    options = options_from(context)
    found = _show_progress(options, qps, seed, sampled=draw is not None)
    if draw is not None:
        from tools.simulate.draw import draw_run

        draw_run(found, draw)
    typer.echo(json.dumps(found.summary(), indent=2))


def options_from(context: typer.Context) -> SimulateOptions:
    try:
        return options_of(context.params)
    except ValueError as error:
        fail(context.info_name or "", error)


def fail(command: str, error: Exception) -> NoReturn:
    typer.echo(f"{command}: {error}", err=True)
    raise typer.Exit(1)


def _show_progress(options: SimulateOptions, qps: float, seed: int, *, sampled: bool) -> "Run":
    from rich.console import Console
    from rich.progress import Progress

    try:
        from tools.simulate.run import run
    except ImportError as error:
        fail("simulate", ImportError(f"{error}; {INSTALL}"))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(options.policy, total=None)
        counted = Counted(lambda done: progress.update(task, completed=done))

        def started(requests: int) -> None:
            counted.every = max(1, requests // 100)
            progress.update(task, total=requests)

        try:
            return run(options, qps, seed, started=started, ended=counted, sampled=sampled)
        except ValueError as error:
            fail("simulate", error)


class Counted:
    """Counts its calls and tells every so many."""

    def __init__(self, tell: Callable[[int], Any]) -> None:
        self.every = 1
        self._tell = tell
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        if self._done % self.every == 0:
            self._tell(self._done)
