"""What would be with other engines or more traffic, from the latest arrivals."""

import json
from dataclasses import replace
from random import Random

import pytest

from foretell.engine.plain import engine_of, plain_engine
from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, LengthEstimate, Slo
from foretell.policy import make_policy
from foretell.sim.what_if import (
    MOST_ARRIVALS,
    Change,
    KnownEngine,
    Met,
    Outcome,
    Situation,
    outcome,
    times,
    what_if,
)
from foretell.workload import Arrival

CONFIG = EngineConfig("m", 16, 2000, 8, 2048, 4096)
STEPS = LinearStepTime((0.02, 0.0001, 0.0, 0.0005, 0.0, 0.0)).packed()
ENGINE = KnownEngine(CONFIG, STEPS)
SLO = Slo(ttft_s=1.0)


def arrivals(count: int, every_s: float, slo: Slo = SLO) -> list[Arrival]:
    length = LengthEstimate(100.0)
    return [Arrival(100 + i * every_s, 200, 100, "", slo=slo, length=length) for i in range(count)]


# Two engines of 8 seats serve about 7 a second: 5 a second are well below, 10 are too many.
BUSY = Situation([ENGINE, ENGINE], arrivals(300, 0.2), 60.0)


def asked(change: Change, situation: Situation = BUSY, scale: float = 1.0) -> Outcome:
    return what_if(situation, change, lambda: make_policy("slo"), Random(0), scale=scale)


def test_fewer_engines_and_seats_and_more_traffic_are_worse_and_more_engines_better() -> None:
    as_it_is = asked(Change())
    assert as_it_is.requests == 300
    assert as_it_is.goodput_rps == pytest.approx(5.0)
    assert as_it_is == asked(Change()), "equal questions get equal answers"
    for worse in (Change(instances=-1), Change(max_num_seqs=4), Change(traffic=2.0)):
        found = asked(worse)
        assert found.ttft_p99_s > 2 * as_it_is.ttft_p99_s
        assert found.within_ratio < 0.9
    assert asked(Change(instances=1)).e2e_p50_s < as_it_is.e2e_p50_s
    assert asked(Change(instances=2, traffic=2.0)).within_ratio == 1.0


def test_several_replicas_see_shares_of_the_traffic() -> None:
    half = replace(BUSY, arrivals=BUSY.arrivals[::2])
    found, whole = asked(Change(), half, scale=2.0), asked(Change())
    assert found.requests == whole.requests
    assert found.e2e_p50_s == pytest.approx(whole.e2e_p50_s, rel=0.1)


@pytest.mark.parametrize(("factor", "count"), [(0.5, 150), (1.0, 300), (2.5, 750), (10.0, 1000)])
def test_the_traffic_is_multiplied_within_its_time(factor: float, count: int) -> None:
    found = times(BUSY, factor)
    assert len(found) == count <= MOST_ARRIVALS
    assert [a.t_s for a in found] == sorted(a.t_s for a in found)
    assert all(0 <= a.t_s < BUSY.span_s for a in found)


def test_targets_count_and_requests_without_any_are_within() -> None:
    late, soon = Met(2.0, 3.0, 11, SLO), Met(0.5, 1.5, 11, SLO)
    found = outcome([late, soon, Met(9.0, 9.0, 1, Slo())], span_s=2.0)
    assert (found.goodput_rps, found.within_ratio) == (1.0, pytest.approx(2 / 3))
    assert found.tpot_mean_s == pytest.approx(0.2 / 3)


def test_where_nothing_can_be_told_it_is_said() -> None:
    with pytest.raises(ValueError, match="no engine"):
        asked(Change(instances=-2))
    with pytest.raises(ValueError, match="no request"):
        asked(Change(), replace(BUSY, arrivals=[]))
    too_long = [replace(BUSY.arrivals[0], prompt_tokens=5000)]
    with pytest.raises(ValueError, match="no request"):
        asked(Change(), replace(BUSY, arrivals=too_long))


def test_the_process_that_simulates_gets_the_same_engine() -> None:
    config = replace(CONFIG, approximations=("LoRA",))
    told = json.loads(json.dumps(plain_engine(config, STEPS)))
    found = KnownEngine(*engine_of(told))
    assert hash(found.config) == hash(config)
    assert found.config == config
    for theirs, ours in zip(found.step_time, STEPS, strict=True):
        assert theirs.tolist() == ours.tolist()
