"""Batches through a scheduler and a batch service."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engines import MODEL, Behaviour, Engine, answer, engines
from openai import AsyncOpenAI
from schedulers import WAIT_S, Scheduler, running, until

from foretell.config import BatchSettings
from foretell.services.batch import __main__ as batch_main
from foretell.services.batch import executor

COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the polling intervals and pauses of the batch service."""
    monkeypatch.setattr(executor, "_LOOK_S", 0.02)
    monkeypatch.setattr(executor, "_FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(batch_main, "LOOK_S", 0.02)


def lines(count: int, name: str = "c", **changes: Any) -> bytes:
    body = {"model": MODEL, "prompt": "hello", **changes}
    return b"".join(
        json.dumps(
            {"custom_id": f"{name}{number}", "method": "POST", "url": COMPLETIONS, "body": body}
        ).encode()
        + b"\n"
        for number in range(count)
    )


@asynccontextmanager
async def batches(
    folder: Path, made: Sequence[Engine] = (), **changes: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler with a batch service, in front of the engines in `made`."""
    secret = folder / "secret"
    secret.write_text("a shared secret\n")
    address = f"unix:{folder}/b.sock"
    stop = asyncio.Event()
    async with running(
        folder, made, batches=address, secret_file=str(secret), **changes
    ) as scheduler:
        settings = BatchSettings(
            folder=str(folder / "batches"),
            listen=address,
            schedulers=scheduler.url,
            secret_file=str(secret),
            ready_file=str(folder / "batch.ready"),
        )
        (folder / "batch.ready").unlink(missing_ok=True)
        task = asyncio.create_task(batch_main.serve(settings, stop))
        try:
            await until(lambda: (folder / "batch.ready").exists() or task.done())
            yield scheduler
        finally:
            stop.set()
            await task


@asynccontextmanager
async def batching(
    folder: Path, behaviour: Behaviour = answer
) -> AsyncIterator[tuple[Engine, Scheduler, AsyncOpenAI]]:
    """One engine, a scheduler with a batch service before it, and OpenAI's client for it."""
    async with (
        engines(behaviour) as (engine,),
        batches(folder, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
        yield engine, scheduler, sdk


async def ended(sdk: AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(WAIT_S):
        while True:
            batch = await sdk.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            await asyncio.sleep(0.01)


async def created(sdk: AsyncOpenAI, data: bytes, **fields: Any) -> Any:
    file = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h", **fields
    )
