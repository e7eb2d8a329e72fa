"""What `bench.placement.real_cluster` makes of snapshots, logs and figures."""

import json
from pathlib import Path

import pytest

from bench.placement.cluster.load import read_logs
from bench.placement.cluster.page import rank_correlation, tables
from bench.placement.cluster.watch import Watch
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape, Step
from foretell.v1 import snapshot_pb2
from foretell.wire import steps_to_proto

STEP_TIME = LinearStepTime((0.01, 0.0, 0.0, 0.0, 0.0, 0.0))
FACTS = {"packages": {}, "cpu": "", "cores": 2, "memory_gib": 1, "os": "", "python": ""}


def snapshot(*steps: float, completed: int, preemptions: int = 0) -> snapshot_pb2.EngineSnapshot:
    """Steps that began at these times, the first `completed` of them over."""
    made = [Step(n, start_s, 0.0, BatchShape(decode_seqs=1)) for n, start_s in enumerate(steps)]
    return snapshot_pb2.EngineSnapshot(
        running=snapshot_pb2.RequestColumns(foretell_id=["a"], preemptions=[preemptions]),
        completed_steps=steps_to_proto(made[:completed]),
        steps_in_flight=steps_to_proto(made[completed:]),
    )


def test_a_step_is_late_by_what_passes_until_the_next_begins() -> None:
    watch = Watch(STEP_TIME, speedup=0.5)
    due_s = STEP_TIME.step_s(BatchShape(decode_seqs=1)) / 0.5
    assert watch.lateness == 0.0
    watch.hear(snapshot(5.0, 5.0 + 1.25 * due_s, completed=1))
    watch.hear(snapshot(9.0, completed=1))  # then it was idle
    watch.hear(snapshot(99.0, completed=0))
    assert watch.steps == 1
    together = (99.0, 99.0 + 1.25 * due_s, 99.0 + 2.5 * due_s)
    watch.hear(snapshot(*together, completed=2))
    assert watch.steps == 3
    assert watch.lateness == pytest.approx(0.25)
    assert watch.lateness_p99 == pytest.approx(0.25)


def test_preemptions_are_counted_once() -> None:
    watch = Watch(STEP_TIME, speedup=1.0)
    for count in (0, 1, 1, 2):
        watch.hear(snapshot(1.0, completed=0, preemptions=count))
    assert watch.preemptions == 2
    watch.reset()
    assert watch.preemptions == 0


def test_a_log_tells_of_finished_requests_of_one_run(tmp_path: Path) -> None:
    entry = {"placement_s": 0.5, "ttft_s": 1.0, "e2e_s": 2.0, "finished": True}
    entries = [
        {**entry, "request_id": "x-1"},
        {**entry, "request_id": "x-2", "ttft_s": None},
        {**entry, "request_id": "x-3", "finished": False},
        {**entry, "request_id": "y-1"},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    found = read_logs([log], "x-")
    assert {key: (one.ttft_s, one.seen) for key, one in found.items()} == {
        "x-1": (1.5, True),
        "x-2": (2.5, False),
    }


def test_ranks_are_compared_and_not_figures() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 11.0, 99.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert rank_correlation([1.0, 1.0, 2.0], [5.0, 5.0, 6.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) is None


def test_the_page_sets_both_side_by_side() -> None:
    figures = dict.fromkeys(("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s"), 2.0)
    figures |= {"preemptions": 3}
    meanwhile = dict.fromkeys(
        ("cores_busy", "others_cores", "step_lateness", "step_lateness_p99", "sent_late_p99_s"), 0.0
    ) | dict.fromkeys(("placement_p50_s", "placement_p99_s", "dispatch_delay_s"), 0.001)
    page = {"command": "c", "date": "d", "machine": {**FACTS, "load_1min": 0}, "profile": "p"}
    page |= {"instances": 2, "speedup": 1.0, "requests": 9, "qps": 3.0, "seed": 1, "simulations": 2}
    page["real"] = {"random": {**figures, **meanwhile, "degraded": {"turn": 4}}}
    page["simulated"] = {"random": [figures, {**figures, "ttft_mean_s": 1.0}]}
    text = tables(page)["tables"]
    assert "| random | 2.00 | 1.50 (1.00 to 2.00) | +0.50 (+33%) |" in text
    assert "| random | 3 | 3 (3 to 3) | +0 |" in text
    assert "4 turn" in text
