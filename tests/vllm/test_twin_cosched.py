"""Compares a co-scheduling twin with the scheduler class itself in vLLM, in virtual time."""

import pytest

from tests.differential.cosched_twin import TwinEngine

pytestmark = pytest.mark.vllm

driver = pytest.importorskip("tests.vllm.cosched_driver", reason="needs vLLM: make test-vllm")

SEEDS = 60


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_twin_schedules_what_the_class_does(seed: int, is_async: bool) -> None:
    real, asks = driver.served(seed, is_async)
    twin = TwinEngine(real.config, real.usual_blocks)
    twin.run(asks)
    for place, (mine, theirs) in enumerate(zip(twin.steps, real.steps, strict=False)):
        again = f"python -m tests.vllm.cosched_driver {seed} {'async' if is_async else 'sync'}"
        assert mine == (pytest.approx(theirs[0], abs=1e-9), theirs[1]), f"step {place}: {again}"
    assert len(twin.steps) == len(real.steps)
    assert twin.ended_s == pytest.approx({n: seen.last_s for n, seen in real.seen.items()})
