"""`python -m foretell.services.provisioner` runs one replica of the provisioner."""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from foretell.config import ProvisionerSettings, build_strategy
from foretell.config.instances import parse_members
from foretell.provision import Provisioner
from foretell.services.process import runtime
from foretell.services.process.http_pages import served
from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.process.logs import setup_logging
from foretell.services.process.traffic import Traffic
from foretell.services.provisioner.docker import DockerDriver
from foretell.services.provisioner.driver import EngineDriver, Orders
from foretell.services.provisioner.fleet import EngineFleet, WatchedFleet
from foretell.services.provisioner.gather import Gatherer
from foretell.services.provisioner.keda import external_scaler
from foretell.services.provisioner.kubernetes import KubernetesDriver
from foretell.services.provisioner.kubernetes_lease import KubernetesLease
from foretell.services.provisioner.lease import FileLease, ProvisionerLease
from foretell.services.provisioner.loop import Loop
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.provisioner.pages import pages
from foretell.services.provisioner.places import EnginePlaces
from foretell.services.provisioner.record import DecisionRecord
from foretell.services.provisioner.tuning import TUNING
from foretell.services.provisioner.webhook import WebhookFleet


async def serve(settings: ProvisionerSettings, stop: asyncio.Event) -> None:
    """Decide, and serve the decisions over HTTP, until `stop`."""
    if not settings.folder:
        raise SystemExit("a provisioner needs a folder: give one with --folder, or --cluster")
    metrics = ProvisionerMetrics()
    folder = Path(settings.folder)
    config = settings.provision_config()
    advisory = settings.driver == "advisory"
    traffic = Traffic.of(settings)
    async with AsyncExitStack() as stack:
        lease = lease_of(settings, stack)
        client = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        build_strategy(
            settings.strategy, settings.strategy_parameters
        )  # fails at start-up if the settings are wrong
        gatherer = Gatherer(
            [url.strip() for url in settings.schedulers.split(",") if url.strip()],
            client,
            traffic,
            api_key=settings.scheduler_api_key.get_secret_value(),
            batches=settings.batches,
        )
        stack.push_async_callback(gatherer.close)
        places = () if advisory else parse_members(settings.instances).instances
        orders = orders_of(settings, [place.instance_id for place in places])
        if orders is not None:
            stack.push_async_callback(orders.close)

        def make() -> tuple[Provisioner, EngineFleet]:
            fresh = build_strategy(settings.strategy, settings.strategy_parameters)
            if not advisory:
                fleet: EngineFleet = EnginePlaces(
                    folder, places, settings.models, client, lease, gatherer.is_empty, orders
                )
            else:
                fleet = _advisory_fleet(settings, client, lease.epoch)
            return Provisioner(fresh, config), fleet

        record = DecisionRecord(folder)
        loop = Loop(lease, make, gatherer, record, metrics, every_s=settings.every_s)
        address = f"{settings.host}:{settings.port}"
        serving_pages = served(pages(loop, metrics), address, TUNING.grace_s)
        address = await stack.enter_async_context(serving_pages)
        keda = ""
        if settings.keda:
            serving = external_scaler(loop, settings.keda, traffic)
            keda = await stack.enter_async_context(serving)
        runtime.announce(settings.ready_file, url=f"http://{address}", keda=keda)
        await loop.run(stop)


def lease_of(settings: ProvisionerSettings, stack: AsyncExitStack) -> ProvisionerLease:
    """The lease by which replicas agree which of them is active."""
    holder = f"{socket.gethostname()}-{os.getpid()}"
    if not settings.lease:
        return FileLease(Path(settings.folder), holder)
    Path(settings.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    if settings.lease.startswith("postgresql://"):
        try:  # an optional dependency
            import psycopg  # noqa: F401, PLC0415

            from foretell.services.provisioner.database_lease import DatabaseLease  # noqa: PLC0415
        except ImportError as error:
            raise SystemExit(f"a lease in a database needs foretell[storage]: {error}") from error
        lease = DatabaseLease(settings.lease, holder)
        stack.callback(lease.close)
        return lease
    api = KubernetesApi.of_this_pod()
    stack.push_async_callback(api.close)
    return KubernetesLease(settings.lease, holder, api, asyncio.get_running_loop())


def orders_of(settings: ProvisionerSettings, places: Sequence[str]) -> Orders | None:
    """What starts and ends engines; None: nothing does, or `foretell up` does."""
    driver: EngineDriver
    if settings.driver == "docker":
        driver = DockerDriver(settings.driver_target, places)
    elif settings.driver == "kubernetes":
        driver = KubernetesDriver(settings.driver_target, places, KubernetesApi.of_this_pod())
    else:
        return None
    return Orders(driver)


def _advisory_fleet(
    settings: ProvisionerSettings, client: aiohttp.ClientSession, epoch: int
) -> EngineFleet:
    source, give_up_s = settings.instances, settings.give_up_s
    if settings.webhook:
        url, secret = settings.webhook, settings.webhook_key()
        return WebhookFleet(source, client, give_up_s, url=url, secret=secret, epoch=epoch)
    return WatchedFleet(source, client, give_up_s)


def main() -> None:
    settings = runtime.load_settings(ProvisionerSettings)
    setup_logging(settings.log_level, settings.log_format)
    runtime.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
