"""What the benchmark of offline orders runs: mixes, and each order on a few requests."""

import numpy as np
import pytest

from bench.offline.blend import ORDERS
from bench.offline.blend_runs import WORK, Case, served
from bench.offline.mixes import Cost, shares
from foretell.offline.tree import prefix_tree

COSTS = {
    "azure": Cost(4.0, 1.0, 1000.0, 32.0),
    "mmlu": Cost(300.0, 1.0, 800.0, 700.0),
    "video": Cost(1.0, 10.0, 100.0, 32.0),
}


def test_a_mix_that_needs_less_than_nothing_of_a_source_is_refused() -> None:
    parts = shares(COSTS, WORK, 1.0, 0.3)
    assert sum(parts) == pytest.approx(1.0)
    assert min(parts) >= 0
    with pytest.raises(ValueError, match="no mix"):
        shares(COSTS, WORK, 1000.0, 0.05)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_serves_all_and_none_beats_the_bound(order: str) -> None:
    draws = np.random.default_rng(0)
    prompts = [[i % 3] * 48 + draws.integers(0, 99, 60).tolist() for i in range(90)]
    case = Case("2", "overlapping", order, 1, 90, 512, kv_tokens=16 * 500)
    found = served(case, prefix_tree(prompts), draws.integers(1, 300, 90))
    assert found["served"] == 90
    assert 0 < found["share_of_bound"] <= 1
