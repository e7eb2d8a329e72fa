"""Runs a file as LiteLLM's proxy runs a batch for a vLLM server, with LiteLLM's runner and router.

    LITELLM_PYTHON peer_litellm.py IN OUT URL MODEL DATABASE CONCURRENCY

A script for the Python that has LiteLLM, which is no dependency of this project. The proxy keeps
files and batches in Postgres by way of Prisma, whose engine is a program that is downloaded at its
first use. Here the file DATABASE stands for that database: each thing that the runner stores is
appended to it at once. CONCURRENCY 0 is LiteLLM's default.
"""

import asyncio
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BEGUN, ENDED = "the batch is created", "the batch has ended"
"""What is printed when the measured time begins and when it ends."""
_ENDPOINT = "/v1/chat/completions"
_LOOK_S = 0.05


class Database:
    """What LiteLLM's runner asks of its database and of its files, for one batch."""

    def __init__(self, source: Path, path: Path) -> None:
        self._source, self._path = source, path
        self.batch: Any = None
        self.files: dict[str, bytes] = {}

    def _keep(self, **stored: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(stored) + "\n")
            file.flush()
            os.fsync(file.fileno())

    # --- LiteLLM's `ManagedBatchStore` ---

    def get_unified_batch_id(self, batch_id: str, model_id: str) -> str:
        return f"{batch_id} of {model_id}"

    async def get_unified_file_id(self, file_id: str, **_: object) -> SimpleNamespace:
        return SimpleNamespace(storage_backend="litellm_db", storage_url=f"litellm_db://{file_id}")

    async def store_unified_object_id(self, *, file_object: Any, **_: object) -> None:
        self.batch = file_object
        self._keep(status=file_object.status)

    # --- LiteLLM's `ManagedBatchRepository` ---

    async def load_batch(self, _: str) -> Any:
        return self.batch

    async def load_status(self, _: str) -> Any:
        return self.batch.status

    async def compare_and_set(self, batch: Any, unchanged: dict[str, Any], _: object) -> bool:
        if self.batch.status != unchanged["status"]:
            return False
        await self.store_unified_object_id(file_object=batch)
        return True

    async def touch(self, *_: object) -> None:
        self._keep(status=self.batch.status)

    # --- LiteLLM's storage of files ---

    def storage(self, *_: object, **__: object) -> "Database":
        return self

    async def download_file(self, _: str) -> bytes:
        return self._source.read_bytes()

    async def upload(self, *, file_data: dict[str, Any], **_: object) -> SimpleNamespace:
        name, content = file_data["filename"], file_data["content"]
        self.files[name] = content
        self._keep(file=name, lines=len(content.splitlines()))
        return SimpleNamespace(id=name)


def stored_answers(path: Path) -> int:
    """Answers that the file which stands for the database holds."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return sum(row.get("lines", 0) for row in rows)


async def answer(database: Database, url: str, model: str, concurrency: int) -> None:
    """Have LiteLLM run the batch whose input and outcome are in `database`, to its end."""
    batches = import_module("litellm.proxy.batches_endpoints.litellm_executed_batches")
    types = import_module("litellm.proxy._types")
    parameters = {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "key"}
    provider = await batches.litellm_executed_provider_for(parameters)
    if provider is None:
        raise SystemExit("LiteLLM would not run a batch for this server by itself")
    router = import_module("litellm").Router(
        model_list=[{"model_name": model, "litellm_params": parameters}]
    )
    runner = batches.LiteLLMExecutedBatchRunner(
        llm_router=router,
        prisma_client=None,
        managed_files=database,
        batches=database,
        proxy_logging_obj=None,
        general_settings={},
        storage_backend_factory=database.storage,
        upload_result_file=database.upload,
        **({"concurrency": concurrency} if concurrency else {}),
    )
    asked = {"input_file_id": "file", "endpoint": _ENDPOINT, "completion_window": "24h"}
    key = types.UserAPIKeyAuth(api_key="key")
    print(BEGUN, flush=True)
    try:
        await runner.create(asked, "file", model, provider, key, None)
    except types.ProxyException as error:
        raise SystemExit(f"status {error.code}: {error.message}") from error
    while database.batch.status not in batches.TERMINAL_BATCH_STATUSES:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    print(f"{ENDED}: {database.batch.status}, {database.batch.errors}", flush=True)


def main() -> None:
    source, output, url, model, path, concurrency = sys.argv[1:]
    database = Database(Path(source), Path(path))
    asyncio.run(answer(database, url, model, int(concurrency)))
    Path(output).write_bytes(b"".join(database.files.values()))


if __name__ == "__main__":
    main()
