"""`python -m services.predictor`: the sidecar's process."""

import asyncio

import grpc
from prometheus_client import CollectorRegistry, start_http_server

from foretell.engine.warm import warm_forecast
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime
from foretell.settings import PredictorSettings, load_profile
from foretell.telemetry import PredictorMetrics
from foretell.v1 import predictor_pb2_grpc
from services import runtime
from services.predictor.service import PredictorService
from services.predictor.subscriber import SnapshotSubscriber, cancel

_SHUTDOWN_GRACE_S = 1.0


def make_step_time(profile: str) -> OnlineStepTime:
    """The step-time model to start from: a shipped profile's, or nothing."""
    if not profile:
        return OnlineStepTime()
    return OnlineStepTime(LinearStepTime(load_profile(profile).coefficients_s))


async def serve(settings: PredictorSettings, stop: asyncio.Event) -> None:
    """Listen to the engine and answer predictions until `stop`."""
    warm_forecast()
    metrics = PredictorMetrics(CollectorRegistry())
    service = PredictorService(
        settings.instance_id,
        make_step_time(settings.profile),
        metrics,
        reserve_ttl_s=settings.reserve_ttl_s,
        dispatch_delay_s=settings.dispatch_delay_s,
        prior_output_tokens=settings.prior_output_tokens,
        lengths=settings.lengths,
    )
    subscriber = SnapshotSubscriber(settings.snapshot_endpoint)
    listening = asyncio.create_task(subscriber.run(service.hear))
    server = grpc.aio.server()
    predictor_pb2_grpc.add_PredictorServicer_to_server(service, server)
    address = runtime.bind_grpc(server, settings.listen, settings.host, settings.port)
    await server.start()
    metrics_port = -1
    if settings.metrics_port >= 0:
        http, _ = start_http_server(settings.metrics_port, settings.host, registry=metrics.registry)
        metrics_port = http.server_port
    runtime.announce(settings.ready_file, address=address, metrics_port=metrics_port)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({stopped, listening}, return_when=asyncio.FIRST_COMPLETED)
    await server.stop(_SHUTDOWN_GRACE_S)
    if listening.done():
        listening.result()  # a listener that ended by itself has failed: say why
    await cancel(listening)
    subscriber.close()


def main() -> None:
    settings = runtime.load_settings(PredictorSettings)
    runtime.setup_logging(settings.log_level)
    runtime.run(lambda stop: serve(settings, stop), with_parent=settings.die_with_parent)


if __name__ == "__main__":
    main()
