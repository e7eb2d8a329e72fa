"""What does a policy gain? Each policy in turn places the same arrivals on the same engines."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from foretell.latency.linear import LinearStepTime
from foretell.length.history import LengthHistory
from foretell.model import EngineSnapshot, Step
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, SimInstanceConfig, simulate
from foretell.tools.check.context import Context
from foretell.tools.check.load import Answered, send
from foretell.tools.harness.schedulers import running_schedulers
from foretell.tools.intervals import interval
from foretell.tools.live.stream import StreamClient
from foretell.tools.live.tap import decoded, listening
from foretell.tools.profiles.steps import fit
from foretell.workload import Arrival

METRICS = ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s", "goodput_per_s")
UTILISATION = 0.9
"""Mean rate as a ratio of the capacity of all engines; bursts go far beyond."""
REFERENCE = "slo"
_CAPACITY_RATIO = 0.14  # of the stage's time, to find the capacity
_START_RATIO = 1.2  # of the time that the first scheduler took to start
_DRAIN_RATIO = 0.25  # of a run, for its last requests to end
_LEAST_RUN_S = 6.0
_ROUNDS, _MOST_ROUNDS = 3, 10  # from three on, an interval is meaningful
_WARM_UP_RATIO = 0.1
_CONCURRENCY_PER_SEAT = 1.25
_SIMULATIONS = 5


@dataclass(frozen=True, slots=True)
class _Run:
    """One policy's turn in one round."""

    round: int
    policy: str
    figures: dict[str, Any]
    degraded: dict[str, int]


async def cluster(context: Context, seconds: float) -> dict[str, Any]:
    """Find the capacity of all engines, then let the policies take turns."""
    ends_s = time.monotonic() + seconds
    policies = context.options.policies
    with ExitStack() as stack:
        heard = [stack.enter_context(listening(feed)) for feed in context.engines.feeds]
        capacity, start_s = await _capacity(context, _CAPACITY_RATIO * seconds)
        rate = UTILISATION * capacity
        rounds, run_s = _rounds(ends_s - time.monotonic(), len(policies), start_s)
        runs: list[_Run] = []
        found: dict[str, Any] = {}
        whole: list[dict[str, _Run]] = []
        for round_, policy in _turns(rounds, policies):
            if ends_s - time.monotonic() < run_s * (1 + _DRAIN_RATIO) and round_ > 0:
                break  # drains took longer than planned: this round is left out
            runs.append(await _run(context, round_, policy, rate, run_s))
            whole = _whole(runs, policies)
            found = context.keep(
                "cluster",
                {
                    "capacity_per_s": round(capacity, 3),
                    "rate_per_s": round(rate, 3),
                    "utilisation": UTILISATION,
                    "seconds_a_run": round(run_s, 1),
                    "rounds": len(whole),
                    "policies": {p: _summary(whole, p) for p in policies if whole},
                    "runs": [{"round": r.round, "policy": r.policy, **r.figures} for r in runs],
                },
            )
        snapshots = [decoded(each()) for each in heard]
    return found | {"simulated": _simulated(context, snapshots, rate, run_s, len(whole))}


def _rounds(left_s: float, policies: int, start_s: float) -> tuple[int, float]:
    """The number of rounds that fit, and the seconds during which a run's requests arrive, if a
    scheduler takes `start_s` to start."""

    def run_s(rounds: int) -> float:
        each_s = left_s / (rounds * policies)
        return (each_s - _START_RATIO * start_s) / (1.0 + _DRAIN_RATIO)

    rounds = 1
    # Beyond `_ROUNDS`, longer runs tell more than further rounds: queues take time to form.
    while rounds < _MOST_ROUNDS and run_s(rounds + 1) >= (
        _LEAST_RUN_S if rounds < _ROUNDS else 2 * _LEAST_RUN_S
    ):
        rounds += 1
    return rounds, max(_LEAST_RUN_S, run_s(rounds))


def _turns(rounds: int, policies: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Rounds and policies, each round in another order."""
    for round_ in range(rounds):
        first = round_ % len(policies)
        order = (*policies[first:], *policies[:first])
        yield from ((round_, policy) for policy in order)


async def _capacity(context: Context, seconds: float) -> tuple[float, float]:
    """Requests a second that all engines serve while some always wait, and the seconds that the
    scheduler took to start."""
    began_s = time.monotonic()
    engines, folder = context.engines, context.services.folder / "capacity"
    concurrency = round(_CONCURRENCY_PER_SEAT * context.max_num_seqs * len(engines.urls))
    async with running_schedulers(folder, engines, "least_outstanding", 1) as schedulers:
        start_s = time.monotonic() - began_s
        return await context.capacity(schedulers.urls[0], "cluster", concurrency, seconds), start_s


async def _run(context: Context, round_: int, policy: str, rate: float, run_s: float) -> _Run:
    name = f"{round_}-{policy}"
    context.say(f"cluster: round {round_ + 1}, {policy}")
    folder = context.services.folder / f"cluster-{name}"
    arrivals = context.arrivals(rate, run_s, _seed(round_))
    async with running_schedulers(folder, context.engines, policy, 1) as schedulers:
        async with StreamClient(schedulers.urls[0]) as client:
            answered = await send(client, arrivals, context.online(name))
        degraded = dict(await schedulers.degraded())
    counted = _counted(answered)
    span_s = run_s * (1.0 - _WARM_UP_RATIO)
    return _Run(round_, policy, context.figures(counted, span_s), degraded)


def _seed(round_: int) -> int:
    return 100 + round_


def _counted(answered: Sequence[Answered]) -> Sequence[Answered]:
    """The answers without the first ones, which found the engines empty."""
    return answered[int(_WARM_UP_RATIO * len(answered)) :]


def _whole(runs: Sequence[_Run], policies: Sequence[str]) -> list[dict[str, _Run]]:
    """The rounds in which every policy had its turn."""
    rounds: dict[int, dict[str, _Run]] = {}
    for run in runs:
        rounds.setdefault(run.round, {})[run.policy] = run
    return [round_ for round_ in rounds.values() if len(round_) == len(policies)]


def _summary(rounds: Sequence[dict[str, _Run]], policy: str) -> dict[str, Any]:
    """Means over rounds; `less_reference` is the difference to the reference, paired by round."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        own = [round_[policy].figures[metric] for round_ in rounds]
        reference = [round_[REFERENCE].figures[metric] for round_ in rounds if REFERENCE in round_]
        found[metric] = {"mean": round(fmean(own), 4)}
        if len(own) > 1 and len(reference) == len(own) and policy != REFERENCE:
            less, half = interval([a - b for a, b in zip(own, reference, strict=True)])
            found[metric] |= {"less_reference": round(less, 4), "half_width": round(half, 4)}
    requests = sum(round_[policy].figures["requests"] for round_ in rounds)
    missing = [round_[policy].degraded for round_ in rounds]
    degraded = {what: sum(m.get(what, 0) for m in missing) for m in missing for what in m}
    return {"requests": requests, "degraded": degraded, **found}


def _simulated(
    context: Context,
    snapshots: Sequence[Sequence[EngineSnapshot]],
    rate: float,
    run_s: float,
    rounds: int,
) -> dict[str, Any]:
    """Simulated figures of the same requests, with step times fitted to the steps of these runs.
    Length estimates come from a history of other requests of the same kind."""
    instances = []
    for own in snapshots:
        steps: list[Step] = [step for snapshot in own for step in snapshot.completed_steps]
        if not steps:
            return {}
        step_time = LinearStepTime(fit(steps).coefficients_s)
        instances.append(SimInstanceConfig(own[-1].config, step_time))
    found = {}
    for policy in context.options.policies:
        each = [
            _simulate(context, tuple(instances), policy, rate, run_s, round_, draw)
            for round_ in range(rounds)
            for draw in range(_SIMULATIONS)
        ]
        found[policy] = {m: round(fmean(one[m] for one in each), 4) for m in METRICS}
    return found


def _simulate(
    context: Context,
    instances: tuple[SimInstanceConfig, ...],
    policy: str,
    rate: float,
    run_s: float,
    round_: int,
    draw: int,
) -> dict[str, Any]:
    arrivals = context.arrivals(rate, run_s, _seed(round_))
    history = LengthHistory()
    for known in context.arrivals(rate, run_s, -1 - draw):
        history.observe("", known.prompt_tokens, known.output_tokens)

    def expected(arrival: Arrival) -> Any:
        return history.estimate("", arrival.prompt_tokens, context.most_tokens)

    config = ClusterConfig(instances, estimate=expected)
    report = simulate(config, arrivals, [make_policy(policy)], Random(draw))
    places = {arrival.request_id: arrival.t_s for arrival in arrivals}
    served = sorted(report.served, key=lambda one: places[one.request_id])
    answered = [
        Answered(s.request_id, s.prompt_tokens, s.output_tokens, s.arrival_s, s.ttft_s, s.e2e_s)
        for s in served
    ]
    return context.figures(_counted(answered), run_s * (1.0 - _WARM_UP_RATIO))
