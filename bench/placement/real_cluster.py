"""Does a real cluster of emulated engines rank the policies as the simulator does?

The engines are those of `bench.placement.scale`, in real time: each is a process, has its predictor
beside it, and gets its requests over HTTP from some schedulers. The same arrivals are simulated.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench.placement.a30 import INSTANCES, PROFILE, Load, cluster, read_lengths
from bench.placement.cluster.load import read_logs, send
from bench.placement.cluster.page import tables
from bench.placement.cluster.processes import Setup, start_engines
from bench.placement.cluster.watch import Watch, watching
from bench.processes import OthersClock, Services, running_services
from bench.report import Benchmark, Numbers
from bench.stats import percentile
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.policy import Needs, make_policy
from foretell.sim import simulate
from foretell.tools.harness.schedulers import Engines, running_schedulers
from foretell.workload import Arrival

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="15 minutes",
    needs="two idle cores",
    paths={"LENGTHS.csv": "prompt and output lengths"},
    packages=("foretell", "numpy", "grpcio", "uvicorn"),
)
POLICIES = ("random", "least_outstanding", "llumnix_minus", "predicted_latency", "slo")
SCHEDULERS = 2
RUNS = (*POLICIES, "slo:1", "slo:4")
"""What is run: a policy and, after a colon, by how many schedulers in place of `SCHEDULERS`."""
WARMUP = tuple(Arrival(0.05 * i, 64, 16, f"w{i}") for i in range(40))
"""Sent to new schedulers first: they open connections and load code."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests, in the profile's seconds, and the engines."""

    setup: Setup
    arrivals: tuple[Arrival, ...]
    qps: float
    seed: int
    simulations: int


def policy_and_schedulers(run: str) -> tuple[str, int]:
    """The two parts of one of `RUNS`."""
    policy, _, schedulers = run.partition(":")
    return policy, int(schedulers or SCHEDULERS)


async def served(plan: Plan, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the real cluster made of the plan, by run."""
    setup = plan.setup
    watch = Watch(profile_step_time(load_profile(setup.profile)), setup.speedup)
    found: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        folder = Path(name)
        async with running_services(folder) as services:
            engines = await start_engines(services, setup)
            async with watching(engines.feeds, watch):
                for run in runs:
                    found[run] = await _measure_one(plan, run, engines, services, watch, folder)
                    print(run, found[run], file=sys.stderr)
    return found


async def _measure_one(
    plan: Plan, run: str, engines: Engines, services: Services, watch: Watch, folder: Path
) -> dict[str, Any]:
    speedup, prefix = plan.setup.speedup, f"{run.replace(':', 'by')}-"
    policy, count = policy_and_schedulers(run)
    async with running_schedulers(folder, engines, policy, count) as schedulers:
        await send(WARMUP, schedulers.urls, engines.model, prefix="warm-", speedup=1.0, seed=0)
        degraded = await schedulers.degraded()
        watch.reset()
        others = OthersClock(lambda: services.cpu_s() + schedulers.services.cpu_s())
        cpu_s = services.cpu_s() + schedulers.services.cpu_s()
        psutil.cpu_percent()  # the next call tells of the time since this one
        answered = await send(
            plan.arrivals,
            schedulers.urls,
            engines.model,
            prefix=prefix,
            speedup=speedup,
            seed=plan.seed,
        )
        meanwhile = {
            "cores_busy": psutil.cpu_percent() / 100.0 * psutil.cpu_count(),
            "others_cores": others.cores(),
            "services_cpu_s": services.cpu_s() + schedulers.services.cpu_s() - cpu_s,
            "steps": watch.steps,
            "step_lateness": watch.lateness,
            "step_lateness_p99": watch.lateness_p99,
            "degraded": dict(await schedulers.degraded() - degraded),
            "dispatch_delay_s": await engines.dispatch_delay_s(),
        }
        preemptions = watch.preemptions
    logged = read_logs(schedulers.logs, prefix)
    assert len(logged) == len(answered), f"{run}: {len(answered) - len(logged)} not in the log"
    return {
        **_figures(
            [one.ttft_s * speedup for one in logged.values()],
            [one.e2e_s * speedup for one in answered],
            preemptions,
        ),
        **meanwhile,
        "sent_late_p99_s": percentile([one.late_s for one in answered], 99),
        **{
            f"placement_p{level}_s": percentile([one.placement_s for one in logged.values()], level)
            for level in (1, 50, 99)
        },
        "first_tokens_unseen": sum(not one.seen for one in logged.values()),
    }


def _figures(ttft_s: Sequence[float], e2e_s: Sequence[float], preemptions: int) -> dict[str, float]:
    return {
        "ttft_mean_s": fmean(ttft_s),
        "ttft_p99_s": percentile(ttft_s, 99),
        "e2e_mean_s": fmean(e2e_s),
        "e2e_p99_s": percentile(e2e_s, 99),
        "preemptions": preemptions,
    }


def simulated(plan: Plan, run: str, real: dict[str, dict[str, Any]]) -> list[dict[str, float]]:
    """The arrivals in virtual time, once for each of some seeds of all other draws.

    Delays are those of the real run: what predictors learned of dispatching, and half the time of
    a placement as the way to a predictor. That is the 1st percentile: most wait for their turn too,
    or are held, which is simulated.
    """
    speedup = plan.setup.speedup
    policy, schedulers = policy_and_schedulers(run)
    asks = make_policy(policy).needs is not Needs.NOTHING
    config = cluster(
        plan.setup.instances,
        dispatch_delay_s=real[run]["dispatch_delay_s"] * speedup,
        network_delay_s=real[run]["placement_p1_s"] / 2 * speedup if asks else 0.0,
    )
    runs = []
    for seed in range(plan.simulations):
        policies = [make_policy(policy) for _ in range(schedulers)]
        report = simulate(config, plan.arrivals, policies, Random(seed))
        ttft_s = [request.ttft_s for request in report.served]
        e2e_s = [request.e2e_s for request in report.served]
        runs.append(_figures(ttft_s, e2e_s, report.preemptions))
    return runs


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("--requests", type=int, default=1000, help="Requests for each run.")
    parser.add_argument("--qps", type=float, default=40.0, help="Rate in the profile's seconds.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of arrivals and lengths.")
    parser.add_argument("--instances", type=int, default=INSTANCES)
    parser.add_argument("--speedup", type=float, default=1.0, help="Speed of the engines' clocks.")
    parser.add_argument("--simulations", type=int, default=5, help="Simulations of each run.")


def measure(options: argparse.Namespace) -> Numbers:
    """Serve the requests, and simulate the same."""
    lengths = read_lengths(options.lengths)
    load = Load(options.qps, options.requests, options.seed, lengths)
    setup = Setup(options.instances, PROFILE, options.speedup)
    plan = Plan(setup, tuple(load.arrivals()), options.qps, options.seed, options.simulations)
    real = asyncio.run(served(plan, options.runs))
    return {
        **asdict(setup),
        "qps": plan.qps,
        "seed": plan.seed,
        "simulations": plan.simulations,
        "requests": len(plan.arrivals),
        "real": real,
        "simulated": {run: simulated(plan, run, real) for run in real},
    }
