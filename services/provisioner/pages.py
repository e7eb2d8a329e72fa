"""The HTTP pages of one replica: health, readiness, metrics and status."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from foretell.services.provisioner.loop import Loop
from foretell.services.provisioner.metrics import ProvisionerMetrics


def pages(loop: Loop, metrics: ProvisionerMetrics) -> web.Application:
    """The application."""

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if loop.decision is not None else 503)

    async def exposed(_: web.Request) -> web.Response:
        text = generate_latest(metrics.registry)
        return web.Response(body=text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def status(_: web.Request) -> web.Response:
        return web.json_response(loop.status())

    app = web.Application(client_max_size=1024)
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/metrics", exposed)
    app.router.add_get("/status", status)
    return app
