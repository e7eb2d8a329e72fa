"""`python -m foretell.services.predictor`: the sidecar's process."""

import asyncio
import gc
import json
import logging

from prometheus_client import CollectorRegistry

from foretell.config import PredictorSettings, check_profile, list_profiles, load_profile
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.devices import DEVICES, MODELS
from foretell.latency.profile_json import profile_to_json
from foretell.latency.roofline import roofline_step_time
from foretell.length import PRIOR_TOKENS
from foretell.model.limits import limits_of
from foretell.services.predictor.metrics import PredictorMetrics
from foretell.services.predictor.observing import Observing
from foretell.services.predictor.publisher import Streams
from foretell.services.predictor.service import PredictorService
from foretell.services.predictor.subscriber import SnapshotSubscriber, cancel
from foretell.services.process import runtime
from foretell.services.process.frames import frames_address, serve_frames, with_free_port
from foretell.services.process.logs import setup_logging
from foretell.services.process.metrics_http import metrics_http
from foretell.services.process.traffic import Traffic

logger = logging.getLogger(__name__)

RESERVE_TTL_S = 10.0
"""Lifetime of a reservation that no snapshot shows: longer than any queue in front of an engine."""
DISPATCH_DELAY_S = 0.002
"""Assumed time from a prediction to the request's arrival in the engine, until it is learned."""

_DATASHEET_ERROR = 0.5  # assumed relative error of a roofline; those checked were within 0.4


def make_step_time(name: str) -> OnlineStepTime:
    """Return the initial step-time model: from a shipped profile, a datasheet, or untrained for "".

    Raises ValueError, which lists the known names, for any other name.
    """
    if not check_profile(name):
        return OnlineStepTime()
    if name in list_profiles():
        return OnlineStepTime(load_profile(name))
    device, _, model = name.partition("/")
    prior = roofline_step_time(DEVICES[device], MODELS[model])
    return OnlineStepTime(prior, prior_error=_DATASHEET_ERROR)


def _profile_json(name: str) -> str:
    """Return the shipped profile whose tables step times need, as JSON; empty for other names."""
    return json.dumps(profile_to_json(load_profile(name))) if name in list_profiles() else ""


async def _serve_snapshots(streams: Streams, address: str, traffic: Traffic) -> asyncio.Server:
    where = frames_address(address)
    try:
        server, _ = await serve_frames(streams.new, where, traffic)
    except OSError as error:
        raise SystemExit(f"cannot publish snapshots at {where}: {error}") from error
    return server


async def serve(settings: PredictorSettings, stop: asyncio.Event) -> None:
    """Listen to the engine and publish what is known of it until `stop`."""
    step_time = make_step_time(settings.profile)
    gc.collect()
    gc.freeze()  # otherwise a full collection stops the loop to scan all imported objects
    metrics = PredictorMetrics(CollectorRegistry())
    service = PredictorService(
        settings.name,
        step_time,
        metrics,
        reserve_ttl_s=RESERVE_TTL_S,
        dispatch_delay_s=DISPATCH_DELAY_S,
        prior_output_tokens=PRIOR_TOKENS,
        profile=_profile_json(settings.profile),
    )
    observing = subscriber = None
    if settings.engine_url:
        limits = limits_of(settings.engine_args)
        observing = Observing(service, settings.engine_url.rstrip("/"), limits)
        listening = asyncio.create_task(observing.run())
    else:
        subscriber = SnapshotSubscriber(settings.snapshot_endpoint)
        subscriber.unpredicted = service.hear_nothing
        listening = asyncio.create_task(subscriber.run(service.hear))
    traffic = Traffic.of(settings)
    address = with_free_port(settings.address)
    streams = Streams(service, traffic, observing)
    serving = await _serve_snapshots(streams, address, traffic)
    with metrics_http(settings, metrics.registry) as metrics_port:
        runtime.announce(settings.ready_file, address=address, metrics_port=metrics_port)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({stopped, listening}, return_when=asyncio.FIRST_COMPLETED)
    serving.close()
    streams.close()
    if listening.done():
        listening.result()  # a listener that ended by itself has failed: say why
    await cancel(listening)
    if subscriber is not None:
        subscriber.close()


def main() -> None:
    settings = runtime.load_settings(PredictorSettings)
    setup_logging(settings.log_level, settings.log_format)
    runtime.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
