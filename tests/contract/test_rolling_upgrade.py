"""Schedulers one version older and one version newer than their predictors serve side by side."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from emulated_engine import MODEL, running_engine
from schedulers import running, until

from foretell.config import PredictorSettings
from foretell.services.predictor import publisher
from foretell.services.predictor.__main__ import serve as serve_predictor
from foretell.services.process import snapshot_stream
from foretell.v1 import predictor_pb2
from foretell.wire.published import VERSION, MessageReader, snapshot_to_proto

ENGINES, REQUESTS = 2, 60


class Older(MessageReader):
    """A reader that does not know a column added since."""

    version = VERSION - 1


class Newer(MessageReader):
    """A reader that knows a column which predictors do not write yet."""

    version = VERSION + 1


def as_written_now(snapshot: object) -> predictor_pb2.Snapshot:
    """Add a column that the older reader does not know; the newer reader's column is missing."""
    told = snapshot_to_proto(snapshot)  # type: ignore[arg-type]
    told.requests.columns.add(name="added_since", kind=1, values=bytes(8 * told.requests.rows))
    return told


@pytest.mark.parametrize("order", [(Older, Newer), (Newer, Older)])
async def test_no_placement_is_without_prediction(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[type[MessageReader], type[MessageReader]],
) -> None:
    monkeypatch.setattr(publisher, "snapshot_to_proto", as_written_now)
    async with AsyncExitStack() as stack:
        stop, instances, peers = asyncio.Event(), [], []
        stack.callback(stop.set)
        for number in range(ENGINES):
            name = f"engine-{number}"
            engine = await stack.enter_async_context(running_engine(tmp_path, name=name))
            address = f"unix://{tmp_path}/predictor-{number}"
            settings = PredictorSettings(
                name=name,
                listen=address,
                snapshot_endpoint=f"shm://{tmp_path}/{name}.snapshots",
                profile="A30/Llama-2-7b-hf",
                ready_file=str(tmp_path / f"predictor-{number}.ready"),
            )
            peers.append(asyncio.create_task(serve_predictor(settings, stop)))
            instances.append({"instance_id": name, "url": engine.url, "predictor": address})
        await until(lambda: len(list(tmp_path.glob("*.ready"))) >= ENGINES)
        schedulers = []
        for number, reader in enumerate(order):
            monkeypatch.setattr(snapshot_stream, "MessageReader", reader)
            folder = tmp_path / str(number)
            folder.mkdir()
            scheduler = await stack.enter_async_context(
                running(folder, instances=json.dumps(instances), policy="slo")
            )
            schedulers.append(scheduler)
            await scheduler.until_metric("foretell_predictor_followed", ENGINES)
        body = {"model": MODEL, "prompt": "hello " * 20, "max_tokens": 20}
        posts = [
            schedulers[number % 2].client.post("/v1/completions", json=body, timeout=60)
            for number in range(REQUESTS)
        ]
        answers = await asyncio.gather(*posts)
        assert all(answer.status_code == 200 for answer in answers)
        assert all("x-foretell-predicted-e2e-s" in answer.headers for answer in answers)
        for scheduler in schedulers:
            assert await scheduler.metric("foretell_degraded_total", missing="predictor") == 0
            assert await scheduler.metric("foretell_snapshots_refused_total") == 0
            await scheduler.until_idle()
        stop.set()
        await asyncio.gather(*peers)
