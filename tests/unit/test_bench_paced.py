"""The arithmetic of `bench.placement.vllm_cluster`: pace, load, and results of runs."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench.accuracy import deployed
from bench.paced import cluster
from bench.paced.engines import EngineSpec
from bench.paced.load import Answered
from bench.paced.pace import Clock
from bench.paced.requests import Ask, Turn, draw, read_conversations
from bench.paced.runs import Run, predicted
from bench.paced.settings import SETTINGS, requests_per_s
from bench.placement.vllm_cluster import summary, tables
from bench.runs import Kept
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape
from foretell.tools.live.report import FORETELL, LATENCIES

# 10 ms a step, 1 ms a prefill token, 2 ms a decoding sequence.
STEP_TIME = LinearStepTime((0.01, 0.001, 0.0, 0.0, 0.002, 0.0))
DECODES = BatchShape(decode_seqs=5, decode_pairs=500)
MACHINE = {"cpu": "", "cores": 2, "memory_gib": 1, "os": "", "python": "", "load_1min": 0}
MADE_BY = {"command": "", "date": "", "machine": {**MACHINE, "packages": {}}}
TURN = Turn(({"role": "user", "content": "x" * 155},), 100)


def test_a_step_lasts_as_long_as_the_profile_says() -> None:
    clock = Clock(STEP_TIME, slowdown=2.0)
    clock.scheduled(DECODES, 50.0)
    assert clock.rest_s(50.003) == pytest.approx(0.04 - 0.003)
    assert clock.rest_s(51.0) == 0.0


def test_a_busy_engine_hides_what_it_does_between_steps() -> None:
    clock = Clock(STEP_TIME, slowdown=1.0)
    clock.scheduled(DECODES, 50.0)
    clock.scheduled(DECODES, 50.022)  # 2 ms after the end of the previous step
    assert clock.rest_s(50.022) == pytest.approx(0.018)
    clock.scheduled(BatchShape(1, 30, 465, 0, 0), 60.0)
    assert clock.rest_s(60.0) == pytest.approx(0.04)


def test_a_step_without_tokens_lasts_no_time() -> None:
    clock = Clock(STEP_TIME, slowdown=1.0)
    clock.scheduled(BatchShape(), 50.0)
    assert clock.rest_s(50.0) == 0.0


def test_an_engine_serves_what_its_seats_or_its_memory_hold() -> None:
    # Prompts of 102 tokens, answers of 100: 102 ms beside decodes, then 100 steps.
    roomy = requests_per_s(EngineSpec(seats=8, slowdown=1.0), TURN.prompt_tokens, 100.0, STEP_TIME)
    prefill_s = 0.001 * TURN.prompt_tokens
    assert roomy == pytest.approx(1 / (prefill_s + 100 * 0.026 / 8))
    short = requests_per_s(
        EngineSpec(seats=8, blocks=4, slowdown=1.0), TURN.prompt_tokens, 100.0, STEP_TIME
    )
    assert short == pytest.approx(1 / (prefill_s + 100 * 0.014 / 2))
    slow = requests_per_s(EngineSpec(seats=8, slowdown=2.0), TURN.prompt_tokens, 100.0, STEP_TIME)
    assert slow == pytest.approx(roomy / 2)


def test_a_round_is_the_same_for_every_policy() -> None:
    conversations = read_conversations(None)
    for setting in SETTINGS.values():
        drawn = [
            draw(
                conversations,
                40,
                2.0,
                seed,
                whole=setting.conversations,
                targets_s=setting.targets_s,
            )
            for seed in (3, 3, 4)
        ]
        assert drawn[0] == drawn[1] != drawn[2]
        asks = [ask for chain in drawn[0] for ask in chain]
        assert [ask.request_id for ask in asks] == [f"{i:04d}" for i in range(len(asks))]
        assert {len(chain) > 1 for chain in drawn[0]} == {setting.conversations}
        starts = [chain[0].after_s for chain in drawn[0]]
        assert starts == sorted(starts)


def test_targets_are_met_or_not() -> None:
    ask = Ask("0000", TURN, 0.0, (1.0, 0.1))
    assert Answered(ask, 0.9, 0.9 + 99 * 0.1).within
    assert not Answered(ask, 1.1, 5.0).within
    assert not Answered(ask, 0.9, 0.9 + 99 * 0.11).within
    assert Answered(replace(ask, targets_s=(0.0, 0.2)), 9.0, 10.0).within


def run_of(ttft_s: float) -> Run:
    errors = {FORETELL: [[1.5, 1.0]], "simple": [[2.0, 1.0]]}
    return Run(
        name="",
        ttft_s=[ttft_s, ttft_s],
        e2e_s=[5.0, 5.0],
        within=[True, False],
        preemptions=4,
        degraded={"tagger": 1},
        step_lateness=0.01,
        bubbles=0.002,
        cores_busy=1.0,
        predicted={
            **dict.fromkeys(LATENCIES, errors),
            "announced": {kind: [[2, 3, 4]] for kind in LATENCIES},
        },
    )


def test_rounds_are_paired_and_only_whole_ones_count(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept.jsonl", "")
    for round_, (ours, theirs) in enumerate([(1.0, 2.0), (2.0, 3.0)]):
        for policy, ttft_s in (("slo", ours), ("round_robin", theirs)):
            kept.keep(("alike", round_, policy, 2), asdict(run_of(ttft_s)))
    plan = cluster.Plan([], 2, 2, tmp_path, tmp_path, ["slo", "round_robin"])
    runs = cluster.runs_of(plan, SETTINGS["alike"], Kept(tmp_path / "kept.jsonl", ""))
    found = summary(runs)
    assert found["rounds"] == 2
    other = found["policies"]["round_robin"]
    assert other["less_reference"]["ttft_mean_s"] == {"mean": 1.0, "half_width": 0.0}
    page = {**MADE_BY, "profile": "", "slowdown": 2.0, "utilisation": 0.9}
    text = tables({**page, "settings": {"alike": {"what": "eight seats", **found}}})["tables"]
    assert "| alike: `round_robin` | 2.50 (+1.00 ± 0.00) |" in text
    assert "| 0.2% |" in text
    assert "| 50% / 50%, 0% |" in text


def test_errors_of_all_predictors_over_all_seeds() -> None:
    late = replace(run_of(1.0), predicted={})
    late.predicted.update({k: {FORETELL: [[3.0, 1.0]], "simple": [[1.0, 1.0]]} for k in LATENCIES})
    late.predicted["cached"] = {FORETELL: [[100, 200], [90, 0]]}
    late.predicted["announced"] = {k: [[2.0, 2.0, 2.0], [4.0, 5.0, 4.0]] for k in LATENCIES}
    hidden = {"what": "nobody knows", **deployed.summary([run_of(1.0), late])}
    page = {**MADE_BY, "profile": "", "slowdown": 2.0, "load": 0.7}
    text = deployed.tables({**page, "kinds": {"hidden": hidden}})["tables"]
    assert f"| `{FORETELL}` | 125% / 200% | 125% / 200% |" in text
    assert "| `simple` | 50% / 100% | 50% / 100% |" in text
    assert "| `announced` | 0% / 50% | 0% / 50% |" in text
    assert "e2e 66.7% (seeds: 0.0% to 100.0%)" in text
    assert "medians 50% to 200%" in text
    assert "95.0% of the 200 prompt tokens that engines found cached were predicted" in text


def test_a_log_tells_what_was_predicted(tmp_path: Path) -> None:
    entry = {
        "instance_id": "engine-0",
        "finished": True,
        "prompt_tokens": 10,
        "predicted_prompt_tokens": 10,
        "predicted_output_tokens": 50.0,
        "output_tokens": 40,
        "placement_s": 0.01,
        "ttft_s": 1.0,
        "e2e_s": 4.0,
        "predicted_ttft_s": 1.5,
        "predicted_e2e_s": 6.0,
        "announced_ttft_s": 1.25,
        "announced_ttft_p90_s": 2.5,
        "announced_e2e_s": 5.0,
        "announced_e2e_p90_s": 9.0,
        "placed_unix_s": 90.0,
        "snapshot_age_s": 0.0,
        "calibration_steps": 9,
    }
    lines = [
        {**entry, "request_id": f"run-{i:04d}", "time_unix_s": 100.0 + 10.0 * i} for i in range(4)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = predicted(log, {"0002", "0003"})
    assert found["ttft"][FORETELL] == [[1.5, 1.0]] * 2
    assert found["e2e"][FORETELL] == [[6.0, 4.0]] * 2
    assert found["e2e"]["recent_mean"] == [[4.0, 4.0]] * 2
    assert found["cached"] == {FORETELL: []}
    assert found["announced"] == {"ttft": [[1.25, 2.5, 1.0]] * 2, "e2e": [[5.0, 9.0, 4.0]] * 2}
    cached = [{**line, "predicted_cached_tokens": 128, "cached_tokens": 256} for line in lines]
    log.write_text("".join(json.dumps(line) + "\n" for line in cached))
    assert predicted(log, {"0003"})["cached"] == {FORETELL: [[128, 256]]}
