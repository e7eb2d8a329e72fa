"""The benchmark against GPUs: which published runs are played, and what is learnt of them."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from bench.accuracy import silicon_runs
from bench.accuracy.silicon_runs import TABLES, Case, Run, learnt, play, runs_of, trials
from foretell.config import load_profile
from foretell.sim.calibrate import HostTime

LOAD = 300, 40, 4, 0.1, 0.01
RUN = Run("h100_sxm", "Llama-3.1-8B", "bfloat16", 1, *LOAD, version="0.19.0")
ROW = {
    "backend": "vllm",
    "mode": "agg",
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm",
    "backend_version": "0.19.0",
    "precision": "",
    "tp_size": "1.0",
    "isl": "300",
    "osl": "40",
    "batch_size": "4.0",
    "silicon_ttft_ms": "100",
    "silicon_tpot_ms": "10",
}


def test_runs_that_cannot_be_played_are_left_out_and_said(tmp_path: Path) -> None:
    rows = [
        *({**ROW, "batch_size": str(clients)} for clients in (4, 8, 16)),
        ROW,  # a run again, in another of the source's files
        {**ROW, "backend": "sglang"},
        {**ROW, "mode": "disagg"},
        {**ROW, "precision": "fp8", "tp_size": "2.0"},
        {**ROW, "precision": "int4"},
        {**ROW, "system": "b200_sxm"},
        {**ROW, "model_path": "Qwen/Qwen3-30B-A3B"},
        {**ROW, "model_path": "some/Model"},
        {**ROW, "model_path": "MiniMaxAI/MiniMax-M2.5", "attention_dp_size": "2.0"},
    ]
    (tmp_path / "h100_sxm").mkdir()
    with (tmp_path / "silicon_e2e.open.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROW, "attention_dp_size"])
        writer.writeheader()
        writer.writerows(rows)
    runs, left_out = runs_of(tmp_path)
    assert runs == [replace(RUN, clients=clients) for clients in (4, 8, 16)]
    assert len(left_out) == 6
    assert any("fp8, h100_sxm, vLLM 0.19.0: too few runs" in why for why in left_out)
    assert any("int4, h100_sxm: the weights" in why for why in left_out)
    assert any("b200_sxm: there are no tables" in why for why in left_out)
    assert any("attention is data-parallel" in why for why in left_out)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ("fp8_block", "fp8", 2048, False, None)),
        ({"moe_ep_size": "4.0"}, ("fp8_block", "fp8", 2048, True, None)),
        ({"precision": "fp4"}, ("nvfp4", "fp8", 2048, False, None)),
        ({"backend_version": "0.18.0"}, ("fp8_block", "", 8192, False, None)),
        ({"backend_version": "0.17.0"}, ("fp8_block", "", 8192, True, None)),
        ({"model_path": "openai/gpt-oss-120b"}, ("w4a16_mxfp4", "fp8", 8192, False, None)),
        (
            {"model_path": "openai/gpt-oss-120b", "system": "h100_sxm"},
            ("w4a16_mxfp4", "", 8192, False, None),
        ),
        ({"model_path": "meta-llama/Llama-3.1-70B"}, ("fp8", "fp8", 8192, False, 32.0)),
    ],
)
def test_models_run_as_their_scripts_say(
    tmp_path: Path, changed: dict[str, str], expected: tuple[str, str, int, bool, float | None]
) -> None:
    row = {**ROW, "model_path": "MiniMaxAI/MiniMax-M2.5", "precision": "fp8", "system": "b200_sxm"}
    row |= {"tp_size": "4.0", "moe_ep_size": "1.0", "isl": "1024", **changed}
    (tmp_path / row["system"]).mkdir()
    with (tmp_path / "silicon_e2e.open.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerows({**row, "batch_size": clients} for clients in ("4", "8", "16"))
    runs, _ = runs_of(tmp_path)
    assert len(runs) == 3
    for run in runs:
        set_so = run.weights, run.kv_cache, run.step_tokens, run.expert_parallel
        assert (*set_so, run.fused_all_reduce_mib) == expected


def test_the_host_s_time_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From runs with one device; those with two do not teach."""
    profile = load_profile("H100/Llama-3.1-8B")
    monkeypatch.setattr(silicon_runs, "profile_of", lambda *_: profile)
    truth = HostTime(step_s=1e-3, sequence_s=30e-6)
    loads = [replace(RUN, clients=clients) for clients in (1, 4, 24)]
    measured = [replace(r, tpot_s=play(Case(r, TABLES, truth), tmp_path)[1]) for r in loads]
    group = [*measured, replace(RUN, devices=2, tpot_s=99.0)]
    cases = trials(group, TABLES)
    assert len(cases) == 3 * len(loads)
    found = learnt(group, TABLES, {case: play(case, tmp_path)[1] for case in cases})
    assert found.step_s == pytest.approx(truth.step_s, rel=0.1)
    assert found.sequence_s == pytest.approx(truth.sequence_s, rel=0.1)
