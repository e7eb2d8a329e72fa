"""What the emulated engine does and publishes to a predictor, over real sockets."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from emulated_engine import DEADLINE_S, EmulatedEngine, running_engine, written

from foretell.model import EngineSnapshot

LONG = {"prompt": "word " * 40, "max_tokens": 400, "ignore_eos": True}


def is_idle(snapshot: EngineSnapshot) -> bool:
    return not snapshot.running and not snapshot.waiting


def is_busy(snapshot: EngineSnapshot) -> bool:
    return bool(snapshot.running)


async def post(engine: EmulatedEngine, **fields: Any) -> httpx.Response:
    return await engine.http.post("/v1/completions", json={**LONG, **fields})


async def test_a_new_engine_says_that_it_is_idle(tmp_path: Path) -> None:
    async with running_engine(tmp_path, name="e-7") as engine:
        snapshot = await engine.snapshots.next()
        assert is_idle(snapshot)
        assert snapshot.instance_id == "e-7"
        assert snapshot.config.emulated
        assert snapshot.config.engine_version == "emulated"
        assert snapshot.free_blocks == snapshot.config.total_blocks


async def test_snapshots_follow_a_request(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        await engine.snapshots.next()
        xargs = {"foretell_id": "F", "foretell_predicted_tokens": 12.5}
        answer = asyncio.create_task(post(engine, max_tokens=5, priority=3, vllm_xargs=xargs))
        heard = await engine.snapshots.until(is_busy)
        heard += await engine.snapshots.until(is_idle)
        assert (await answer).status_code == 200
    heard = [s for s in heard if s.completed_steps or s.steps_in_flight]  # no heartbeats
    assert all(b.sequence == a.sequence + 1 for a, b in pairwise(heard))
    *steps, idle = heard
    rows = [s.running[0] for s in steps]
    assert [row.output_tokens for row in rows] == [0, 1, 2, 3, 4]
    # Includes the step in flight: the whole prompt in the first step, one token in each later.
    assert [row.computed_tokens for row in rows] == [40, 41, 42, 43, 44]
    assert [row.scheduled_tokens for row in rows] == [40, 1, 1, 1, 1]
    assert {(r.foretell_id, r.predicted_output_tokens, r.priority) for r in rows} == {
        ("F", 12.5, 3)
    }
    assert rows[0].request_id.startswith("cmpl-")
    assert rows[0].arrival_unix_s <= steps[0].taken_unix_s <= time.time()
    assert (steps[0].steps_in_flight[0].shape.prefill_tokens, idle.steps_in_flight) == (40, ())
    # The next snapshot reports each step in flight as completed, with its duration.
    for before, after in pairwise(heard):
        (flying,), (completed,) = before.steps_in_flight, after.completed_steps
        assert (flying.step, flying.shape) == (completed.step, completed.shape)
        assert flying.duration_s == 0 < completed.duration_s
    assert idle.free_blocks == idle.config.total_blocks
    assert steps[0].free_blocks == idle.free_blocks - 3  # 40 tokens in blocks of 16


async def test_blocks_are_conserved_and_preemptions_told_under_pressure(tmp_path: Path) -> None:
    async with running_engine(
        tmp_path, total_blocks=64, max_model_len=1024, max_num_seqs=8
    ) as engine:
        answers = [
            asyncio.create_task(post(engine, prompt=f"p{i} " * 90, max_tokens=60))
            for i in range(12)
        ]
        heard = await engine.snapshots.until(is_busy)
        heard += await engine.snapshots.until(is_idle)
        for answer in answers:
            assert (await answer).json()["usage"]["completion_tokens"] == 60
    for snapshot in heard:
        held = sum(snapshot.config.blocks_for(row.computed_tokens) for row in snapshot.running)
        assert held + snapshot.free_blocks == snapshot.config.total_blocks
        assert len(snapshot.running) <= 8
    assert any(s.waiting for s in heard)
    assert any(row.preemptions for s in heard for row in (*s.running, *s.waiting))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_engine(tmp_path: Path, stream: bool) -> None:
    async with running_engine(tmp_path, speedup=1.0) as engine:
        leaving = asyncio.create_task(post(engine, stream=stream, max_tokens=4000))
        await engine.snapshots.until(lambda s: bool(s.running) and s.running[0].output_tokens > 2)
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        *_, last = await engine.snapshots.until(is_idle)
        assert last.free_blocks == last.config.total_blocks
        assert (await post(engine, max_tokens=1)).status_code == 200


async def test_a_stop_string_frees_the_engine(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        first = (await post(engine, max_tokens=3)).json()["choices"][0]["text"].split()[2]
        answer = await post(engine, stop=first, max_tokens=4000)
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        heard = await engine.snapshots.until(
            lambda s: any(row.max_tokens == 4000 for row in s.running)
        )
        heard += await engine.snapshots.until(is_idle)
        rows = [row for s in heard for row in s.running if row.max_tokens == 4000]
        assert max(row.output_tokens for row in rows) < 100


async def test_a_full_queue_is_refused_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.backend.emulator.__main__.MAX_QUEUE", 2)
    async with running_engine(tmp_path, speedup=1.0) as engine:
        held = [asyncio.create_task(post(engine, max_tokens=4000)) for _ in range(2)]
        await engine.snapshots.until(lambda s: len(s.running) == 2)
        refused = await post(engine)
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        assert (await post(engine, prompt=["x"] * 3)).status_code == 400  # can never fit
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await engine.snapshots.until(is_idle)
        assert (await post(engine, max_tokens=1)).status_code == 200


async def test_first_bytes_of_a_stream_come_with_the_first_token(tmp_path: Path) -> None:
    async with running_engine(tmp_path, max_num_seqs=1, speedup=1.0) as engine:
        holding = asyncio.create_task(post(engine, max_tokens=4000))
        await engine.snapshots.until(is_busy)
        messages = [{"role": "user", "content": "hello"}]
        body = {"messages": messages, "max_tokens": 2, "stream": True}
        request = engine.http.stream("POST", "/v1/chat/completions", json=body)
        async with request as answer:  # the headers have come; the request still waits
            *_, waiting = await engine.snapshots.until(lambda s: bool(s.waiting))
            first = asyncio.ensure_future(anext(aiter(answer.aiter_bytes())))
            await engine.snapshots.until(lambda s: s.sequence > waiting.sequence + 3)
            assert not first.done()
            holding.cancel()
            chunk = await asyncio.wait_for(first, DEADLINE_S)
        events = chunk.decode().split("\n\n")
        assert '"role":"assistant"' in events[0]
        assert '"content":" ' in events[1]
        with contextlib.suppress(asyncio.CancelledError):
            await holding


async def start_process(folder: Path, *flags: str) -> tuple[asyncio.subprocess.Process, Path]:
    ready = folder / "ready.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "foretell.services.backend.emulator", "--ready-file", str(ready), *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FORETELL_EMULATOR_MODEL_NAME": "tiny"},
    )
    return process, ready


async def test_the_process_announces_itself_and_ends_on_sigterm(tmp_path: Path) -> None:
    process, ready = await start_process(tmp_path, "--speedup", "50")
    try:
        await written(ready, lambda: process.returncode is not None)
        facts = json.loads(ready.read_text())
        assert facts["pid"] == process.pid
        assert facts["model_name"] == "tiny"
        async with httpx.AsyncClient(base_url=facts["url"], timeout=DEADLINE_S) as http:
            body = {"model": "tiny", "prompt": "x", "max_tokens": 2, "ignore_eos": True}
            answer = await http.post("/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 2
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), DEADLINE_S)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--profile", "Z80/basic"), "unknown GPU profile"),
        (("--total-blocks", "10"), "max_model_len 4096 needs 256 KV blocks"),
    ],
)
async def test_settings_that_cannot_work_end_the_process_with_a_reason(
    tmp_path: Path, flags: tuple[str, ...], reason: str
) -> None:
    process, _ = await start_process(tmp_path, *flags)
    _, stderr = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 1
    assert reason in stderr.decode()
