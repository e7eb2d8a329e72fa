"""`foretell plan`: the smallest number of engines of each kind that keeps the targets."""

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.tools.simulate.options import EngineOptions
from foretell.tools.simulate.plan import Plan, fewest, in_order, kinds_of, parse_prices

A30, H100 = "A30/Llama-2-7b-hf", "H100/Llama-3.1-8B"


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    draws = Random(1)
    lines = ["num_prefill_tokens,num_decode_tokens"]
    lines += [f"{draws.randint(1, 400)},{draws.randint(1, 60)}" for _ in range(80)]
    path = tmp_path / "lengths.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 8, 9, 63, 64])
def test_the_fewest_that_keep_the_targets_are_found(needed: int) -> None:
    tried: list[int] = []

    def keeps(instances: int) -> bool:
        tried.append(instances)
        return instances >= needed

    assert fewest(keeps, 64) == needed
    assert len(tried) == len(set(tried)) <= 12
    assert fewest(lambda instances: False, 5) == 0


def test_every_profile_is_tried_with_every_limit() -> None:
    found = kinds_of([A30, H100], [24, 48], [])
    assert found == tuple(EngineOptions(p, 1, s) for p in (A30, H100) for s in (24, 48))


def test_the_cheapest_that_keeps_the_targets_comes_first() -> None:
    def one(profile: str, instances: int, price: float | None) -> Plan:
        return Plan(profile, 0, 0, instances, 0.99, 1.0, 0.5, price)

    few, cheap, none = one("few", 1, 4.0), one("cheap", 3, 3.0), one("none", 0, 1.0)
    assert in_order([none, few, cheap]) == [cheap, few, none]
    unpriced = one("unpriced", 2, None)
    assert in_order([cheap, unpriced, few]) == [few, unpriced, cheap]


def test_prices_are_checked() -> None:
    assert parse_prices([f"{A30}=0.5"]) == {A30: 0.5}
    for text in ("A30", "A30=free", "=3", "A30=-1"):
        with pytest.raises(ValueError, match="give PROFILE=PRICE"):
            parse_prices([text])


def test_a_plan_by_simulation(lengths: Path) -> None:
    arguments = ["plan", "--trace", str(lengths), "--profile", A30, "--qps", "40", "--seeds", "1"]
    arguments += ["--policy", "least_outstanding", "--processes", "1", "--price", f"{A30}=2"]
    kept = [*arguments, "--ttft-slo-s", "1", "--most", "8"]
    result = CliRunner().invoke(app, [*kept, "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    assert 1 < found["instances"] <= 8
    assert found["within"] >= 0.99
    assert found["price"] == 2 * found["instances"]
    assert 0 < found["free_kv_ratio"] < 1
    missing = CliRunner().invoke(app, [*arguments, "--json"])
    assert "a plan needs targets" in str(missing.exception)


def test_a_plan_says_what_is_left_for_offline_requests(lengths: Path) -> None:
    arguments = ["plan", "--trace", str(lengths), "--profile", A30, "--qps", "4", "--seeds", "1"]
    arguments += ["--policy", "least_outstanding", "--processes", "1", "--most", "4", "--json"]
    arguments += ["--ttft-slo-s", "2", "--tpot-slo-s", "0.2", "--offline", str(lengths)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    assert found["instances"] == 1
    assert found["offline_tokens_per_s"] > 4 * 30  # more than what online requests ask for
    assert found["within_beside"] >= 0.95
