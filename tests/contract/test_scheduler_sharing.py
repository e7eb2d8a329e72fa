"""A tenant that sends more than an engine can serve does not keep the others waiting.

An emulated engine with one seat, a real sidecar, a real scheduler.
"""

import asyncio
import hashlib
import json
from pathlib import Path

import httpx
import pytest
from emulated_engine import MODEL, engine_with_sidecar
from schedulers import Scheduler, running

from foretell.placement import core
from foretell.services.process.folders import free_ports

pytestmark = pytest.mark.timeout(600)
LONG, SHORT = 40, 4
"""Output tokens: about a second on the engine, and next to no time."""


async def ask(scheduler: Scheduler, tenant: str, tokens: int) -> httpx.Response:
    said = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
    }
    headers = {"x-api-key": tenant}
    return await scheduler.client.post("/v1/chat/completions", json=said, headers=headers)


async def test_the_others_go_first_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MOST_HELD", 5)
    names = ("loud", "quiet", "operator")
    keys: dict[str, dict[str, object]] = {
        name: {"sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names
    }
    keys["operator"]["admin"] = True
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps(keys))
    (port,) = free_ports("127.0.0.1", 1)
    instance = {
        "instance_id": "engine-0",
        "url": f"http://127.0.0.1:{port}",
        "predictor": f"unix://{tmp_path}/predictor-0",
    }
    async with (
        engine_with_sidecar(tmp_path, 0, port),
        running(
            tmp_path,
            instances=json.dumps([instance]),
            policy="slo",
            api_keys_file=str(file),
            headers={"x-api-key": "operator"},
        ) as scheduler,
    ):
        await scheduler.until(lambda s: s["instances"][0]["healthy"])
        while "x-foretell-predicted-ttft-s" not in (await ask(scheduler, "quiet", SHORT)).headers:
            pass  # the scheduler has not heard of the engine yet
        loud = [asyncio.create_task(ask(scheduler, "loud", LONG)) for _ in range(12)]
        await scheduler.until_metric("foretell_requests_over_share", 3)
        assert (await ask(scheduler, "quiet", SHORT)).status_code == 200
        assert sum(not each.done() for each in loud) >= 3
        answers = await asyncio.gather(*loud)
        refused = [each for each in answers if each.status_code != 200]
        assert 1 <= len(refused) <= 6
        for each in refused:
            assert (each.status_code, each.json()["error"]["code"]) == (429, "over_share")
            assert int(each.headers["retry-after"]) >= 1
        await scheduler.until_idle()
        assert await scheduler.metric("foretell_requests_over_share") == 0
