"""The plugin's counts of draft tokens."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.model import EngineSnapshot
from foretell.services.backend.vllm import compat
from foretell.services.backend.vllm.plugin import ForetellScheduler
from foretell.services.backend.vllm.speculation import DraftCounts
from foretell.tools.verify.engine_loop import VerifiedLoop
from foretell.tools.verify.installed import build_scheduler
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto
from tests.vllm.scenarios import VARIANTS, drive

pytestmark = pytest.mark.vllm


def counted(counts: DraftCounts, drafts: dict[str, int], sampled: dict[str, int]) -> None:
    """Count a step with these drafts and sampled tokens; "new" has no output yet."""
    output = SimpleNamespace(scheduled_spec_decode_tokens={i: [0] * n for i, n in drafts.items()})
    tokens = SimpleNamespace(
        req_ids=list(sampled), sampled_token_ids=[[0] * n for n in sampled.values()]
    )
    requests = {i: SimpleNamespace(num_output_tokens=int(i != "new")) for i in sampled}
    counts.count(output, tokens, requests)


def test_shares_of_steps_by_drafts_and_by_what_is_accepted() -> None:
    counts = DraftCounts(3)
    assert counts.ratios() == ([], [])
    counted(counts, {"a": 3, "b": 1}, {"a": 4, "b": 1, "c": 1, "new": 1, "mid prompt": 0})
    assert counts.ratios() == (pytest.approx([2 / 3, 1 / 3, 1 / 3]), pytest.approx([1 / 3] * 3))
    for _ in range(5000):
        counted(counts, {"a": 3, "b": 3}, {"a": 2, "b": 2})
    drafted, accepted = counts.ratios()
    assert drafted == pytest.approx([1.0] * 3, abs=1e-3)
    assert accepted == pytest.approx([1.0, 0.0, 0.0], abs=1e-3)


def test_snapshots_tell_what_was_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", f"shm://{tmp_path}/snapshots")
    told: list[EngineSnapshot] = []

    def observe(loop: VerifiedLoop) -> None:
        recorder: Any = loop.scheduler.foretell.recorder
        recorder._publish = lambda *parts: told.append(
            snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(b"".join(parts)))
        )

    config = VARIANTS["async-eagle"]
    drive(config, ForetellScheduler, 5, observe=observe)
    last = told[-1]
    assert last.config.num_speculative_tokens == last.config.num_lookahead_tokens == 3
    assert last.config.drops_last_hit
    assert last.config.approximations == ()
    assert last.drafted_ratio == pytest.approx((1.0, 1.0, 1.0), abs=0.1)
    assert last.accepted_ratio == pytest.approx((0.7, 0.5, 0.3), abs=0.1)


def test_drafts_that_the_twin_does_not_know_are_told() -> None:
    scheduler: Any = build_scheduler(VARIANTS["sync-ngram"])
    assert compat.engine_config(scheduler).num_speculative_tokens == 4
    for name, value in (
        ("dynamic_sd_lookup", [1]),
        ("num_prefill_lookahead", 2),
        ("num_spec_tokens", 17),
    ):
        before = getattr(scheduler, name)
        setattr(scheduler, name, value)
        assert compat.approximations(scheduler) == ["speculative decoding"]
        assert compat.engine_config(scheduler).num_speculative_tokens == 0
        setattr(scheduler, name, before)
