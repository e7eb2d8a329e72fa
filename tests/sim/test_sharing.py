"""How a tenant that floods a cluster affects the others."""

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, LengthEstimate
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, Report, SimInstanceConfig, simulate
from foretell.workload import Arrival, LogNormal, LogNormalLengths, poisson, stream
from tests.sweeps import cases

ENGINE = EngineConfig("small", 16, 256, 8, 128, 1024)
INSTANCE = SimInstanceConfig(ENGINE, LinearStepTime((0.020, 1e-4, 1e-9, 0.0, 1e-4, 1e-7)))
CONFIG = ClusterConfig(
    (INSTANCE,) * 3,
    estimate=lambda _: LengthEstimate(40.0),
    publish_interval_s=0.1,
    network_delay_s=0.001,
)
SEEDS = range(cases(6, 2))


def arrivals(seed: int, *, named: bool) -> list[Arrival]:
    """One tenant sends several times as much as the engines can serve, another a tenth of it."""
    found: list[Arrival] = []
    for tenant, qps in (("loud", 60.0), ("quiet", 2.0)):
        draws = Random(f"{seed} {tenant}")
        lengths = LogNormalLengths(LogNormal(32, 0.8, 200), LogNormal(40, 0.8, 200))
        sent = stream(int(12 * qps), poisson(qps, draws), lengths, draws)
        name = tenant if named else ""
        found += [replace(a, request_id=f"{tenant}-{a.request_id}", tenant=name) for a in sent]
    return sorted(found, key=lambda a: a.t_s)


def wait_s(report: Report, tenant: str) -> float:
    return fmean(s.ttft_s for s in report.served if s.request_id.startswith(tenant))


@pytest.mark.sweep
def test_the_others_hardly_wait_and_nothing_is_lost() -> None:
    for seed in SEEDS:
        reports = {}
        for named in (False, True):
            sent = arrivals(seed, named=named)
            reports[named] = simulate(CONFIG, sent, [make_policy("slo")] * 2, Random(seed))
            assert len(reports[named].served) == len(sent)
        before_s, after_s = (wait_s(reports[named], "quiet") for named in (False, True))
        assert after_s < 0.1 * before_s, f"seed {seed}"
        done_s = [max(s.arrival_s + s.e2e_s for s in r.served) for r in reports.values()]
        # Room is noticed when an engine reports: with so few seats that takes a tenth of the time.
        assert done_s[1] < 1.35 * done_s[0], f"seed {seed}: the engines were not full"
