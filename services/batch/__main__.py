"""`python -m foretell.services.batch`: settings from flags and FORETELL_BATCH_* variables."""

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from functools import partial
from math import inf
from pathlib import Path

from foretell.batch.release import LOOK_S
from foretell.config import BatchSettings
from foretell.services.batch.app import BatchApp
from foretell.services.batch.executor import Executor
from foretell.services.batch.metrics import BatchMetrics
from foretell.services.batch.ordering import Ordering
from foretell.services.batch.store import BatchStore
from foretell.services.batch.target import Endpoints
from foretell.services.batch.window import Window
from foretell.services.batch.work import Work
from foretell.services.process import runtime
from foretell.services.process.database import DatabaseError
from foretell.services.process.http_pages import served
from foretell.services.process.logs import setup_logging
from foretell.services.process.metrics_http import metrics_http
from foretell.services.process.traffic import Traffic, require_proof

logger = logging.getLogger(__name__)

_CLEAN_S = 600.0
_DRAIN_S = 10.0


async def serve(settings: BatchSettings, stop: asyncio.Event) -> None:
    """Serve files and batches, and have their requests answered, until `stop`."""
    traffic = Traffic.of(settings)
    urls = [url.strip() for url in settings.schedulers.split(",") if url.strip()]
    if not settings.folder or not urls:
        raise SystemExit("the batch service needs a folder and the URLs of schedulers")
    try:
        store = BatchStore(
            Path(settings.folder),
            database_url=settings.database_url,
            files_url=settings.files_url,
        )
        work = await asyncio.to_thread(Work, store)
    except (OSError, DatabaseError) as error:
        raise SystemExit(f"batches cannot be kept in {settings.folder}: {error}") from error
    metrics = BatchMetrics()
    async with AsyncExitStack() as stack:
        stack.callback(store.close)
        endpoints = Endpoints(urls, traffic)
        stack.push_async_callback(endpoints.close)
        window = Window(endpoints, settings.ttft_target_ms / 1000 or inf)
        ordering = Ordering(work, Path(settings.folder), settings.files_url, settings.profile)
        executor = Executor(work, endpoints, lambda: window.size, metrics, ordering)
        metrics.in_flight.set_function(lambda: executor.in_flight)
        metrics.density.set_function(lambda: ordering.density)
        metrics.window.set_function(lambda: window.size)
        tasks = [
            asyncio.create_task(_watch(window, executor)),
            asyncio.create_task(_clean(store)),
        ]
        for task in tasks:
            stack.callback(task.cancel)
        app = BatchApp(
            store,
            traffic,
            tenant_bytes=settings.tenant_bytes,
            changed=executor.wake,
            promises=executor.promises,
            instances=lambda: window.instances,
        )
        stack.callback(app.close)
        require_proof(settings.address, traffic)
        serving = served(app.application(), settings.address, _DRAIN_S, traffic.server_tls())
        address = await stack.enter_async_context(serving)
        metrics_port = stack.enter_context(metrics_http(settings, metrics.registry))
        logger.info("batches are served on %s", address)
        runtime.announce(settings.ready_file, address=address, metrics_port=metrics_port)
        await executor.run(stop)


async def _watch(window: Window, executor: Executor) -> None:
    """Keep the window as large as schedulers' predictions allow."""
    while True:
        await window.look(executor)
        await asyncio.sleep(LOOK_S)


async def _clean(store: BatchStore) -> None:
    while True:
        with suppress(OSError, DatabaseError):
            await asyncio.to_thread(store.clean)
        await asyncio.sleep(_CLEAN_S)


def main() -> None:
    settings = runtime.load_settings(BatchSettings)
    setup_logging(settings.log_level, settings.log_format)
    runtime.run(partial(serve, settings))


if __name__ == "__main__":
    main()
