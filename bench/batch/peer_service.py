"""The batch service behind a scheduler, before one real vLLM engine with its predictor.

It is asked directly, and as the provider of LiteLLM's proxy, which sends batches on to a server
that has files and batches of its own.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx

from bench.batch.cluster import start_batches, url_of
from bench.batch.peer_runs import (
    ENDPOINT,
    ENGINE_ARGS,
    MODEL,
    Ran,
    answered,
    kept,
    peak_mb,
    serving,
)
from bench.processes import Service, Services
from bench.vllm_cpu import ENVIRONMENT
from foretell.batch.states import ENDED
from foretell.services.process.folders import free_ports

_START_S, _LOOK_S, _SETTLE_S = 400.0, 0.05, 2.0
_TIMEOUT_S, _RELAY_LOOK_S = 60.0, 0.5
_FOLDER = "batches"
"""Where the batch service keeps all, whichever process it is."""
_PATIENCE = ("--predictor-deadline-ms=20000", "--turn-deadline-ms=60000", "--health-timeout-s=20")
"""Engines and scheduler share the cores, so answers of predictors may take longer than usual."""


class BatchService:
    """A batch service that can be killed and started again on the same folder."""

    def __init__(self, services: Services, engine: str, scheduler: str, service: Service) -> None:
        self.engine = engine
        """The address of the engine."""
        self._services, self._scheduler, self._service = services, scheduler, service
        self._starts = 1

    @classmethod
    async def start(cls, services: Services, python: Path, model: Path) -> "BatchService":
        """Start engine, predictor, scheduler and batch service."""
        os.environ.update(ENVIRONMENT)  # which the engine inherits
        launcher = await services.start(
            "launcher",
            "foretell.services.backend",
            "--engine=vllm",
            "--name=engine-0",
            f"--python={python}",
            f"--model={model}",
            f"--served-model-name={MODEL}",
            f"--run-dir={services.folder}",
            f"--engine-args={ENGINE_ARGS} --disable-uvicorn-access-log",
            start_timeout_s=_START_S,
        )
        facts = {name: launcher.facts[name] for name in ("url", "predictor")}
        scheduler = await services.start(
            "scheduler",
            "foretell.services.scheduler",
            f"--instances={json.dumps([{'instance_id': 'engine-0', **facts}])}",
            "--name=scheduler",
            *_PATIENCE,
            start_timeout_s=_START_S,
        )
        url = str(scheduler.facts["url"])
        service = await start_batches(services, url, "batch", folder=_FOLDER)
        return cls(services, str(facts["url"]), url, service)

    @property
    def url(self) -> str:
        """The address of the batch service, which is another after a new start."""
        return url_of(self._service)

    async def run(self, source: Path, output: Path) -> Ran:
        """Upload a file, have it answered, and write its output and error files to `output`."""
        begun_s = time.monotonic()
        batch_id = await self._created(source)
        return await self._ended(batch_id, output, begun_s)

    async def killed(self, source: Path, output: Path, half: int) -> dict[str, int]:
        """Do the same with a service that is killed when `half` are answered, and started again."""
        before = answered(self.engine)
        batch_id = await self._created(source)
        while answered(self.engine) - before < half:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(2 * _LOOK_S)
        self._service.process.kill()
        await asyncio.sleep(_SETTLE_S)
        at_kill = answered(self.engine) - before
        found = kept(self._services.folder / _FOLDER)
        self._starts += 1
        name = f"batch-{self._starts}"
        self._service = await start_batches(self._services, self._scheduler, name, folder=_FOLDER)
        await self._ended(batch_id, output, time.monotonic())
        return {"answered": at_kill, "kept": found, "computed": answered(self.engine) - before}

    async def _created(self, source: Path) -> str:
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
            content = await asyncio.to_thread(source.read_bytes)
            files = {"file": (source.name, content)}
            url = f"{self.url}/v1/files"
            file = (await client.post(url, files=files, data={"purpose": "batch"})).json()
            asked = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
            batch = (await client.post(f"{self.url}/v1/batches", json=asked)).json()
            return str(batch["id"])

    async def _ended(self, batch_id: str, output: Path, begun_s: float) -> Ran:
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
            while True:
                batch = (await client.get(f"{self.url}/v1/batches/{batch_id}")).json()
                if batch["status"] in ENDED:
                    break
                await asyncio.sleep(_LOOK_S)
            wall_s, parts = time.monotonic() - begun_s, []
            for file_id in (batch["output_file_id"], batch["error_file_id"]):
                if file_id:
                    url = f"{self.url}/v1/files/{file_id}/content"
                    parts.append((await client.get(url)).content)
        await asyncio.to_thread(output.write_bytes, b"".join(parts))
        failed = int(batch["status"] != "completed")
        return Ran(failed, wall_s, peak_mb(self._service.process.pid), {}, json.dumps(batch))


def relayed(litellm: Path, url: str, source: Path) -> dict[str, Any]:
    """Give a file to LiteLLM's proxy, whose provider is the batch service at `url`.

    What the proxy answered at the last step, and how many lines of output came through it.
    `litellm` is the program; it has no database.
    """
    (port,) = free_ports("127.0.0.1", 1)
    proxy, config = f"http://127.0.0.1:{port}", source.with_name("litellm.json")
    parameters = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "key"}
    models = [{"model_name": MODEL, "litellm_params": parameters}]
    settings = {"dangerously_permit_weak_or_unset_master_key": True}  # it asks for no key, as ours
    config.write_text(json.dumps({"model_list": models, "general_settings": settings}))
    argv = (str(litellm), "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    with (
        serving(argv, source.with_name("litellm.log"), f"{proxy}/health/liveliness"),
        httpx.Client(base_url=proxy, trust_env=False, timeout=_TIMEOUT_S) as client,
    ):
        client.headers.update({"authorization": "Bearer key", "x-litellm-model": MODEL})
        files = {"file": (source.name, source.read_bytes())}
        answer = client.post("/v1/files", files=files, data={"purpose": "batch"})
        if answer.status_code != 200:
            return _told("upload", answer)
        file_id = answer.json()["id"]
        asked = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        answer = client.post("/v1/batches", json=asked)
        while answer.status_code == 200 and answer.json()["status"] not in ENDED:
            time.sleep(_RELAY_LOOK_S)
            answer = client.get(f"/v1/batches/{answer.json()['id']}")
        if answer.status_code != 200:
            return _told("batch", answer)
        answer = client.get(f"/v1/files/{answer.json()['output_file_id']}/content")
        lines = len(answer.text.splitlines()) if answer.status_code == 200 else 0
        return {**_told("content", answer), "lines": lines}


def _told(step: str, answer: httpx.Response) -> dict[str, Any]:
    said = "" if answer.status_code == 200 else answer.text[:300]
    return {"step": step, "status": answer.status_code, "said": said, "lines": 0}
