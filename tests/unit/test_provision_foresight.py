"""`foresight`: the smallest number of engines whose twins keep the targets."""

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, EngineSnapshot
from foretell.provision import (
    Facts,
    InstanceFacts,
    InstancePhase,
    Proposal,
    ProvisionConfig,
    Provisioner,
    StrategyPlan,
)
from foretell.provision.strategies import make_strategy
from tests.unit.provision_cases import plan, published, warming

ENGINE = EngineConfig("model", 16, 400, 8, 256, 1024)
MODEL = LinearStepTime((0.02, 1e-4, 0.0, 0.0, 1e-4, 0.0))
IDLE = published(EngineSnapshot("e", "", 0, 0.0, 0.0, ENGINE, 400, (), (), (), ()), MODEL)
TARGETS = {"ttft_s": 1.0, "tpot_s": 0.1}


def engines(count: int) -> list[InstanceFacts]:
    return [
        InstanceFacts(f"e{i}", InstancePhase.READY, 0.0, max_num_seqs=8, published=lambda: IDLE)
        for i in range(count)
    ]


def proposed(
    rate: float, count: int, *more: InstanceFacts, the_plan: StrategyPlan | None = None
) -> Proposal:
    """The strategy's proposal after some minutes of constant arrivals."""
    strategy = make_strategy("foresight", **TARGETS)
    found = Proposal(0, "")
    lengths = [(50, 40.0)] * 20
    for tick in range(20):
        facts = Facts(10.0 * tick, [*engines(count), *more], round(10 * rate), lengths)
        found = strategy.propose(facts, the_plan or plan(count + len(more), cold_start_s=30.0))
    return found


def test_more_for_more_load_and_no_more_than_needed() -> None:
    few, many = proposed(4.0, 1), proposed(40.0, 1)
    assert few.instances == 1
    assert many.instances > 3
    assert proposed(40.0, many.instances).instances in (many.instances - 1, many.instances)
    assert few.confidence == 0.9
    assert "requests/s expected in 30 s" in few.why


def test_as_few_at_once_as_keep_the_targets() -> None:
    assert [proposed(1.0, count).instances for count in (4, 7)] == [1, 1]
    enough = proposed(40.0, 1).instances  # this includes work for requests that have been waiting
    assert proposed(40.0, 2 * enough).instances in (enough - 1, enough)


def test_what_is_warming_is_counted_on() -> None:
    needed = proposed(40.0, 1).instances
    coming = [warming(f"w{i}") for i in range(needed - 1)]
    assert proposed(40.0, 1, *coming).instances <= needed


def test_the_maximum_is_all_there_is() -> None:
    found = proposed(200.0, 1, the_plan=plan(1, maximum=3, cold_start_s=30.0))
    assert found.instances == 3
    assert found.confidence is None


def test_it_holds_until_something_is_known() -> None:
    strategy = make_strategy("foresight")
    assert strategy.propose(Facts(0.0, [], 5, [(5, 5.0)]), plan(2)).instances == 2
    with pytest.raises(ValueError, match="between 0 and 1"):
        make_strategy("foresight", confidence=1.0)


def test_constant_load_makes_no_swings() -> None:
    core = Provisioner(make_strategy("foresight", **TARGETS), ProvisionConfig(cold_start_s=30.0))
    count, seen = 2, []
    for tick in range(120):
        arrived = 240 + 15 * (tick % 3 - 1)
        facts = Facts(10.0 * tick, engines(count), arrived, [(50, 40.0)] * 20)
        count = core.decide(facts).desired
        seen.append(count)
    assert len(set(seen[10:])) == 1
