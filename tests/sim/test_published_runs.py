"""The twin against published runs of vLLM on GPUs: the figures of docs/adr/0001-one-twin.md."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.config import load_profile
from foretell.latency.tables import graph_sizes, profile_step_time
from foretell.model import EngineConfig
from tests.sim.errors import Errors, accuracy
from tests.sim.host_time import HostTime, host_time
from tests.sim.published_run import read_run
from tests.sim.recorded import ReplayConfig, replay
from tests.sweeps import cases

RUNS = Path(__file__).resolve().parents[1] / "data" / "recorded_runs"
PROFILES = {
    "Llama-3.1-8B": "RTXPRO6000/Llama-3.1-8B",
    "Qwen3-32B": "RTXPRO6000/Qwen3-32B",
    "Qwen3-30B-A3B-Instruct-2507": "RTXPRO6000/Qwen3-30B-A3B",
}


def replayed(folder: str, name: str) -> tuple[HostTime, dict[str, Errors]]:
    """Replay a run with a profile's kernel times: the host's time, learnt from the first third, and
    the errors of all other requests."""
    run, profile = read_run(RUNS / folder), load_profile(name)
    kwargs = run.engine_kwargs
    engine = EngineConfig(
        model_name=run.model,
        block_size_tokens=16,
        total_blocks=run.kv_blocks or profile.total_blocks,
        max_num_seqs=int(kwargs["max_num_seqs"]),
        max_num_scheduled_tokens=int(kwargs["max_num_batched_tokens"]),
        max_model_len=max(r.prompt_tokens + r.output_tokens for r in run.requests),
        engine_version=run.engine_version,
        enable_prefix_caching=kwargs.get("enable_prefix_caching") is not False,
        async_scheduling=True,
    )
    assert profile.tables is not None
    tables = replace(profile.tables, graph_sizes=graph_sizes(engine.max_num_seqs))
    gpu = profile_step_time(replace(profile, tables=tables))
    config = ReplayConfig(engine, ranks=int(kwargs.get("data_parallel_size") or 1))
    first = len(run.requests) // 3
    host = host_time(run.requests, config, gpu, first)
    actual = [r.actual for r in run.requests if r.actual is not None]
    predicted = replay(run.requests, config, host.added_to(gpu))
    return host, accuracy(predicted[first:], actual[first:])


@pytest.mark.sweep
@pytest.mark.parametrize("folder", list(PROFILES)[: cases(3, 1)])
def test_the_twin_is_near_published_runs(folder: str) -> None:
    host, found = replayed(folder, PROFILES[folder])
    assert 0.0 < host.step_s < 2e-3
    assert abs(found["tpot"].mean_error) <= 0.02
    assert abs(found["ttft"].mean_error) <= 0.03
    assert abs(found["e2e"].mean_error) <= 0.02
    assert found["e2e"].mape <= 0.03


def test_another_profile_wants_a_host_that_nobody_has() -> None:
    """The test above can fail: on a device twice as fast, half the time would be the host's."""
    host, _ = replayed("Llama-3.1-8B", "H100/Llama-3.1-8B")
    assert host.step_s > 5e-3


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    """The first 30 requests of a run: alone a different run, but in the same format."""
    source, folder = RUNS / "Llama-3.1-8B", tmp_path / "RTXPRO6000"
    folder.mkdir()
    (folder / "meta.json").write_bytes((source / "meta.json").read_bytes())
    lines = gzip.decompress((source / "requests.jsonl.gz").read_bytes()).splitlines()[:30]
    (folder / "requests.jsonl").write_bytes(b"\n".join(lines))
    return folder


def test_stamps_are_brought_to_one_clock(small_run: Path) -> None:
    rows = [json.loads(line) for line in (small_run / "requests.jsonl").read_text().splitlines()]
    found = read_run(small_run)
    assert [r.request_id for r in found.requests] == [row["request_id"] for row in rows]
    delays = [row["queued_ts"] - r.arrival_s for row, r in zip(rows, found.requests, strict=True)]
    assert min(delays) == pytest.approx(0.0, abs=1e-6)
    assert max(delays) < 0.2  # at most a step or two


def test_the_null_block_holds_nothing(small_run: Path) -> None:
    path = small_run / "meta.json"
    meta = json.loads(path.read_text())
    for told, usable in (({"num_gpu_blocks": 1001}, 1000), ({}, 0), ({"num_gpu_blocks": None}, 0)):
        path.write_text(json.dumps(meta | {"kv_cache": told}))
        assert read_run(small_run).kv_blocks == usable
