"""What the benchmarks of offline orders share: engines, mixes, kept runs and figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.offline import blend_wide
from bench.offline import blend_wide_page as page
from bench.offline.blend_models import DEVICE, MODELS, kv_tokens, on
from bench.offline.blend_runs import KV_TOKENS, WORK, Setting, feeds_for, kept, optimum_s
from bench.offline.mixes import Cost, shares
from foretell.latency.devices import model_spec
from foretell.offline.tree import prefix_tree
from foretell.offline.work import datasheet_work
from foretell.sim.offline import run_engines

COSTS = {
    "azure": Cost(4.0, 1.0, 1000.0, 32.0),
    "mmlu": Cost(300.0, 1.0, 800.0, 700.0),
    "video": Cost(1.0, 10.0, 100.0, 32.0),
}
SETTING = Setting(1.0, 0.2, 1, 300, 512, kv_tokens=16 * 500)


def test_the_models_have_the_rates_and_the_memory_of_the_paper() -> None:
    llama = model_spec("Llama-3.1-8B")
    assert kv_tokens(llama, 1) == pytest.approx(KV_TOKENS, rel=0.002)
    work = datasheet_work(DEVICE, llama)
    for name in ("prefill_token_s", "decode_token_s", "decode_pair_s", "weights_s"):
        assert getattr(work, name) == pytest.approx(getattr(WORK, name), rel=0.005)
    for name, (model, gpus) in MODELS.items():
        found = on(name, SETTING)
        assert found.kv_tokens == kv_tokens(model, gpus) > 100_000
        heads = 2 * (model.attention_heads + model.kv_heads) * model.head_size
        layer = model.hidden_size * (heads + 3 * model.mlp_width)
        counted = model.layers * layer + 2 * model.vocabulary * model.hidden_size
        assert model.parameters == pytest.approx(counted, rel=0.001)


def test_a_mix_that_needs_less_than_nothing_of_a_source_is_refused() -> None:
    parts = shares(COSTS, WORK, 1.0, 0.3)
    assert sum(parts) == pytest.approx(1.0)
    assert min(parts) >= 0
    with pytest.raises(ValueError, match="no mix"):
        shares(COSTS, WORK, 1000.0, 0.05)


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("order", blend_wide.SEVERAL)
def test_every_order_serves_all_on_any_number_of_engines(order: str, engines: int) -> None:
    draws = np.random.default_rng(0)
    prompts = [[i % 3] * 48 + draws.integers(0, 99, 60).tolist() for i in range(90)]
    tree, outputs = prefix_tree(prompts), draws.integers(1, 300, 90)
    setting = Setting(1.0, 0.2, 1, 90, 512, kv_tokens=16 * 500, engines=engines)
    feeds = feeds_for(order, setting, tree, outputs)
    runs = run_engines(tree, outputs, feeds, setting.config, setting.step)
    assert len(runs) == engines
    assert sum(run.served for run in runs) == 90
    _, bound = optimum_s(setting, tree, outputs)
    assert bound <= max(run.seconds for run in runs)


def test_a_run_that_was_kept_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "build" / "runs.jsonl"
    first = kept(file, {"order": "DFS", "seed": 1}, lambda: {"seconds": 1.0})
    again = kept(file, {"order": "DFS", "seed": 1}, lambda: {"seconds": 2.0})
    other = kept(file, {"order": "DFS", "seed": 2}, lambda: {"seconds": 2.0})
    assert first == again == {"order": "DFS", "seed": 1, "seconds": 1.0}
    assert other["seconds"] == 2.0


def test_gains_and_scaling_compare_runs_of_the_same_file() -> None:
    def one(order: str, engines: int, seed: int, seconds: float) -> dict[str, Any]:
        aimed = {"model": "m", "aimed_density": 1.0, "aimed_sharing": 0.1}
        return {**aimed, "order": order, "engines": engines, "seed": seed, "seconds": seconds}

    runs = [
        one("DFS", 1, 1, 10.0),
        one("DFS", 1, 2, 20.0),
        one(page.FEEDBACK, 1, 1, 8.0),
        one(page.FEEDBACK, 1, 2, 10.0),
        one(page.QUEUE, 2, 1, 4.0),
        one(page.QUEUE, 2, 2, 8.0),
    ]
    assert page.gains(runs, page.FEEDBACK) == [1.25, 2.0]
    assert page.scaling(runs, page.QUEUE, 2) == [2.0, 1.25]
