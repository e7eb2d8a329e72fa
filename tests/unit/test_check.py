"""`foretell check`: its plan, its budget, and the report on what a folder contains."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.tools.check.budget import Budget
from foretell.tools.check.cluster import _rounds
from foretell.tools.check.cost import summary
from foretell.tools.check.dummies import SHAPES, weight_bytes, write_dummy
from foretell.tools.check.engines import CannotCheck, plan_engines
from foretell.tools.check.hardware import Gpu, parsed, visible
from foretell.tools.check.options import STAGES, CheckOptions
from foretell.tools.check.page import write_page

GIB = 2**30
H100 = Gpu("0", "NVIDIA H100 80GB HBM3", 80 * GIB, "580.65.06")
SMI = """\
0, NVIDIA H100 80GB HBM3, 81559, 580.65.06, 1980, 700.00
1, NVIDIA H100 80GB HBM3, 81559, 580.65.06, 1980, 700.00
"""


def options(**given: Any) -> CheckOptions:
    return CheckOptions(output=Path("unused"), **given)


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(str(i), H100.name, H100.memory_bytes, H100.driver) for i in range(count))


def kept(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found))


def test_what_the_driver_tells_of_gpus() -> None:
    found = parsed(SMI + "nothing that is told\n")
    assert [gpu.index for gpu in found] == ["0", "1"]
    assert found[0].memory_bytes == 81559 * 2**20
    assert found[0].driver == "580.65.06"


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [(None, ["0", "1"]), ("1", ["1"]), ("1,0", ["1", "0"]), ("", []), ("GPU-3f", ["0", "1"])],
)
def test_gpus_that_a_user_has_chosen(chosen: str | None, indices: list[str]) -> None:
    assert [gpu.index for gpu in visible(parsed(SMI), chosen)] == indices


@pytest.mark.parametrize("name", SHAPES)
def test_a_dummy_has_a_tokenizer_and_its_published_size(name: str, tmp_path: Path) -> None:
    model = write_dummy(name, tmp_path)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= {
        file.name for file in model.iterdir()
    }
    published = {"qwen3-0.6b": 0.6, "qwen3-1.7b": 1.72, "qwen3-8b": 8.19, "llama-3.1-8b": 8.03}
    if name in published:
        assert weight_bytes(model) == pytest.approx(2e9 * published[name], rel=0.02)


def test_engines_share_one_gpu_as_far_as_their_memory_goes(tmp_path: Path) -> None:
    small = plan_engines(options(dummy="qwen3-0.6b"), gpus(1), tmp_path)
    large = plan_engines(options(dummy="qwen3-8b"), gpus(1), tmp_path)
    assert (small.count, large.count) == (4, 3)
    for plan in (small, large):
        used = plan.count * (plan.kv_bytes + weight_bytes(Path(plan.model)))
        assert used < 0.9 * H100.memory_bytes
        assert plan.at_once
        assert {plan.places(index) for index in range(plan.count)} == {"0"}
        assert f"--kv-cache-memory-bytes {plan.kv_bytes}" in plan.args(0, "")


def test_each_gpu_gets_an_engine_where_there_are_several(tmp_path: Path) -> None:
    plan = plan_engines(options(dummy="qwen3-8b"), gpus(4), tmp_path)
    assert [plan.places(index) for index in range(plan.count)] == ["0", "1", "2", "3"]
    assert "memory" not in plan.args(0, "")
    two = plan_engines(options(dummy="qwen3-8b", engine_args="-tp 2"), gpus(4), tmp_path)
    assert [two.places(index) for index in range(two.count)] == ["0,1", "2,3"]


def test_only_the_last_engine_serves_offline_requests(tmp_path: Path) -> None:
    plan = plan_engines(options(), (), tmp_path)
    assert plan.count == 2
    assert "MeteredScheduler" in plan.args(0, "")
    assert "CheckedCoScheduler" in plan.args(1, "--swap")
    assert plan.args(1, "--swap").endswith("--swap")


def test_engines_of_unknown_size_that_share_a_gpu_start_one_after_the_other() -> None:
    plan = plan_engines(options(model="some/model"), gpus(1), Path())
    assert (plan.count, plan.kv_bytes, plan.at_once) == (2, 0, False)
    assert plan.model == "some/model"


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"dummy": "no-such"}, 1),
        ({"dummy": "qwen3-8b", "engines": 5}, 1),
        ({"dummy": "qwen3-8b", "engines": 1}, 1),
        ({"dummy": "qwen3-8b", "engine_args": "--tensor-parallel-size 4"}, 2),
    ],
)
def test_what_cannot_fit_is_refused(given: dict[str, Any], count: int, tmp_path: Path) -> None:
    with pytest.raises(CannotCheck):
        plan_engines(options(**given), gpus(count), tmp_path)


def test_stages_share_the_time_that_is_left() -> None:
    now_s = 0.0
    budget = Budget(600.0, lambda: now_s)
    now_s = 60.0
    given_s, todo = 0.0, list(STAGES)
    while todo:
        stage = todo.pop(0)
        share_s = budget.share_s(stage, todo)
        assert share_s > 0
        now_s += share_s
        given_s += share_s
    assert 480 < given_s < 600 - 60
    assert budget.left_s > 0


def test_a_stage_without_time_is_left_out() -> None:
    now_s = 0.0
    budget = Budget(60.0, lambda: now_s)
    now_s = 52.0
    assert budget.share_s("truth", ["cluster"]) == 0.0


@pytest.mark.parametrize("left_s", [30.0, 100.0, 200.0, 1000.0])
def test_rounds_of_policies_fit_their_time(left_s: float) -> None:
    rounds, run_s = _rounds(left_s, 4, 2.0)
    assert rounds >= 1
    assert rounds == 1 or rounds * 4 * run_s < left_s


def block(plugin: bool, own_us: float) -> dict[str, Any]:
    return {"plugin": plugin, "own_us": [own_us] * 5, "step_us": [1000.0] * 5, "requests": [3] * 5}


def test_the_plugins_cost_is_the_difference_within_pairs() -> None:
    blocks = [block(True, 120), block(False, 100), block(False, 200), block(True, 230)]
    found = summary([*blocks, block(True, 5000)])
    assert found["pairs"] == 2
    assert found["own"]["more_us"] == 25.0
    assert found["step"]["more_us"] == 0.0
    assert summary(blocks[:2]) == {"pairs": 1}


MACHINE = {
    "machine": {"cpu": "a CPU", "cores": 2, "python": "3.11", "packages": {}, "load_1min": 0.1},
    "gpus": [],
    "date_utc": "2026-01-01 00:00",
    "foretell": "0",
    "engines": 2,
    "engines_per_gpu": 1,
    "engines_started_s": 60,
    "engine_args": "--some",
    "model": "tiny",
}
ATTACHED = {"engines": [{"attached": True, "engine_version": "vllm 0.32.0", "not_modelled": []}]}


def test_a_run_that_was_killed_leaves_a_page_of_what_it_had_found(tmp_path: Path) -> None:
    kept(tmp_path / "machine.json", MACHINE)
    kept(tmp_path / "attach.json", ATTACHED)
    blocks = [block(True, 120), block(False, 100), block(False, 200), block(True, 230)]
    kept(tmp_path / "cost.json", summary(blocks))
    answer = CliRunner().invoke(app, ["check", "--report", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert "vllm 0.32.0" in answer.output
    assert "25 ±" in answer.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) == {"verdict", "about", "attach", "cost"}
    assert "laboratory" in (tmp_path / "report.md").read_text()


def test_stages_that_failed_say_why(tmp_path: Path) -> None:
    kept(tmp_path / "machine.json", MACHINE)
    kept(tmp_path / "attach.json", {"failed": "OSError: no port"})
    kept(tmp_path / "truth.json", {"left_out": "too little time was left"})
    page = write_page(tmp_path).read_text()
    assert "OSError: no port" in page
    assert "too little time was left" in page


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["check", "--report", str(tmp_path)])
    assert answer.exit_code == 1


def test_results_of_another_run_are_not_overwritten(tmp_path: Path) -> None:
    kept(tmp_path / "machine.json", MACHINE)
    answer = CliRunner().invoke(app, ["check", "--output", str(tmp_path)])
    assert answer.exit_code == 1
    assert json.loads((tmp_path / "machine.json").read_text()) == MACHINE


def test_a_check_without_the_policy_that_is_checked_is_refused(tmp_path: Path) -> None:
    arguments = ["check", "--output", str(tmp_path), "--policies", "round_robin"]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 1
    assert not list(tmp_path.iterdir())
