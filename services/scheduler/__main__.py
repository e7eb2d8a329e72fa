"""`python -m foretell.services.scheduler` runs one replica of the scheduler."""

import asyncio
import gc
import logging
import os
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import aiohttp
from prometheus_client import CollectorRegistry

from foretell.config import SchedulerSettings, build_policy
from foretell.length import ConversationTokens, PromptTokenEstimator
from foretell.openai.headers import Cors
from foretell.openai.slo import default_terms
from foretell.placement import PlacementConfig
from foretell.policy.base import Needs
from foretell.services.http.server import Listener, Server
from foretell.services.http.tls import Certificate
from foretell.services.process import runtime
from foretell.services.process.logs import setup_logging
from foretell.services.process.traffic import Traffic, is_loopback
from foretell.services.scheduler.app import App
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.discovery import discovering, is_discovered
from foretell.services.scheduler.envoy.server import Picker
from foretell.services.scheduler.lifecycle.context import Shared, bodies_in_progress
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.estimators import Estimators
from foretell.services.scheduler.placing.lengths import FastLengths, open_model
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.pool import Pool, engine_authorization
from foretell.services.scheduler.placing.tagging import TaggerClient, open_channel
from foretell.services.scheduler.placing.tokens import PromptCounter
from foretell.services.scheduler.proxy import Batches, StoredResponses
from foretell.services.scheduler.record.explain import explained_attempt
from foretell.services.scheduler.record.recorder import EstimatorFeedback, Recorder
from foretell.services.scheduler.record.request_log import RequestLog
from foretell.services.scheduler.record.tracing import open_tracing
from foretell.services.scheduler.relay.relay import Relay
from foretell.services.scheduler.relay.transport import EngineClient
from foretell.services.scheduler.tenants.auth import ApiKeys
from foretell.tenants.in_progress import InProgress, PredictedEnds
from foretell.v1 import tagger_pb2_grpc


@dataclass(frozen=True, slots=True)
class SchedulerTuning:
    """Timeouts and intervals of a scheduler for its peers. `placement` has the values that the
    simulator shares."""

    placement: PlacementConfig = field(default_factory=PlacementConfig)
    health_interval_s: float = 0.5
    """Pause between two health probes of an engine."""
    health_timeout_s: float = 3.0
    """Longest time of one probe: a vLLM engine answers between two steps, which may be long."""
    health_failures: int = 3
    """Failed probes in a row after which an engine is down: a busy one may be late for two."""
    connect_timeout_s: float = 2.0
    """Longest time to connect to an engine: engines are near, so a slower one is gone."""
    background_drain_s: float = 2.0
    """Time that feedback to the tagger and the log get at shutdown."""
    request_log_max_bytes: int = 64 << 20
    """Size at which the request log is rotated; one old file is kept."""


logger = logging.getLogger(__name__)


async def serve(
    settings: SchedulerSettings,
    stop: asyncio.Event,
    *,
    seed: int | None = None,
    tuning: SchedulerTuning = SchedulerTuning(),
) -> None:
    """Serve until `stop`, then finish what is in progress. `seed` is for all random draws; None:
    the pid, so that replicas draw differently."""
    async with AsyncExitStack() as stack:
        probes = await stack.enter_async_context(
            aiohttp.ClientSession(
                # An engine's container may have another address after a restart.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        )
        engine_api_key = settings.engine_api_key.get_secret_value()
        engines = EngineClient(engine_api_key, tuning.connect_timeout_s, settings.request_timeout_s)
        stack.callback(engines.close)
        metrics = SchedulerMetrics(CollectorRegistry())
        background = Background()
        traffic = Traffic.of(settings)
        stub, tagger = None, None
        if settings.tagger:
            channel = await stack.enter_async_context(open_channel(settings.tagger, traffic))
            stub = tagger_pb2_grpc.TaggerStub(channel)
            tagger = TaggerClient(stub, settings.tagger_wait_ms / 1e3)
            stack.callback(tagger.stop)
        pool = Pool(
            "[]" if is_discovered(settings.instances) else settings.instances,
            probes,
            metrics,
            engine_api_key=engine_api_key,
            health_interval_s=tuning.health_interval_s,
            health_timeout_s=tuning.health_timeout_s,
            health_failures=tuning.health_failures,
            wakes=settings.wake_engines,
            traffic=traffic,
        )
        by_name = bool(traffic.authority)
        finding = discovering(settings.instances, pool.take, metrics, by_name=by_name)
        discovery = await stack.enter_async_context(finding)
        estimators = Estimators(
            FastLengths(open_model(_length_model(settings))),
            PromptTokenEstimator(),
            PromptCounter(settings.tokenizer),
            ConversationTokens(),
        )
        placer = Placer(
            build_policy(settings.policy, settings.policy_parameters),
            replace(tuning.placement, instance_wait_s=settings.engine_wait_s),
            Random(os.getpid() if seed is None else seed),
            pool=pool,
            estimators=estimators,
            tagger=tagger,
            metrics=metrics,
            background=background,
        )
        stack.callback(placer.close)
        request_log = RequestLog(
            settings.request_log,
            tuning.request_log_max_bytes,
            metrics.log_lines_lost.inc,
            partial(explained_attempt, policy=placer.core.policy),
            settings.explain_ratio,
        )
        stack.callback(request_log.close)
        feedback = EstimatorFeedback(estimators, stub, background)
        recorder = Recorder(
            metrics, feedback, request_log, placer.core.policy.name, placer.predictors, background
        )
        batches = Batches(settings.batches, traffic)
        stack.push_async_callback(batches.close)
        in_progress = InProgress(
            settings.max_concurrent_requests,
            PredictedEnds(placer.predicted_ends_s, time.perf_counter).wait_s,
        )
        metrics.in_progress.set_function(lambda: in_progress.now)
        replica_id = settings.name or f"{socket.gethostname()}-{os.getpid()}"
        tracing = open_tracing(replica_id)
        if tracing is not None:
            stack.callback(tracing.close)
        shared = Shared(
            placer,
            recorder,
            pool,
            _api_keys(settings, traffic),
            in_progress,
            bodies_in_progress(settings.max_body_bytes),
            settings.max_body_bytes,
            default_terms(settings.ttft_target_ms, settings.tpot_target_ms, settings.late_requests),
            tracing,
        )
        app = App(
            replica_id=replica_id,
            shared=shared,
            relay=Relay(shared, engines, settings.stream_keep_alive_s),
            metrics=metrics,
            discovery=discovery,
            batches=batches,
            stored=StoredResponses(pool, placer.kept, probes, engine_authorization(engine_api_key)),
            cors=Cors(settings.cors_origins),
        )
        picker = Picker(app, engine_authorization(engine_api_key))
        if settings.picker:
            await stack.enter_async_context(picker.serving(settings.picker, settings))
        await _run(settings, app, picker, stop)
        await background.drain(tuning.background_drain_s)


async def _run(settings: SchedulerSettings, app: App, picker: Picker, stop: asyncio.Event) -> None:
    own = runtime.bind(settings.host, settings.port)
    listeners = [Listener(own)]
    if settings.shared_port:
        listeners.append(Listener(runtime.bind(settings.host, settings.shared_port, shared=True)))
    facts = {"url": f"http://{settings.host}:{own.getsockname()[1]}"}
    if settings.https_listen:
        certificate = Certificate(settings.https_certificate, settings.https_key)
        host, _, port = settings.https_listen.rpartition(":")
        encrypted = runtime.bind(host.strip("[]"), int(port), shared=True)
        listeners.append(Listener(encrypted, certificate.context))
        facts["https_url"] = f"https://{host}:{encrypted.getsockname()[1]}"

    async def drain_first() -> None:
        await stop.wait()
        app.draining = True
        picker.drain()

    predictors, spending = app.shared.placer.predictors, app.shared.api_keys.spending
    predictors.passed_on = spending.hear
    probing = asyncio.create_task(app.shared.pool.run())
    telling = asyncio.create_task(spending.run(predictors.ways))
    draining = asyncio.create_task(drain_first())
    watching = asyncio.create_task(app.shared.api_keys.watch())
    try:
        await Server(app).run(
            listeners,
            stop,
            on_ready=lambda: runtime.announce(
                settings.ready_file, **facts, replica_id=app.replica_id
            ),
            drain_s=settings.drain_timeout_s,
        )
    finally:
        tasks = (probing, telling, draining, watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _api_keys(settings: SchedulerSettings, traffic: Traffic) -> ApiKeys:
    given = settings.api_keys.get_secret_value()
    keys = ApiKeys(given, settings.api_keys_file, traffic=traffic)
    for address in filter(None, (f"{settings.host}:{settings.port}", settings.https_listen)):
        if not keys.needed and not is_loopback(address):
            logger.warning("anyone who can reach %s may call: there are no API keys", address)
    return keys


def _length_model(settings: SchedulerSettings) -> str:
    """The length model that `open_model` is to open. It takes 110 MB, so there is none if no
    decision depends on lengths."""
    policy = build_policy(settings.policy, settings.policy_parameters)
    if policy.needs is Needs.NOTHING:
        return "none"
    return settings.length_model


def prepared() -> SchedulerSettings:
    """Load the settings, set up logging and import nearly everything."""
    settings = runtime.load_settings(SchedulerSettings)
    setup_logging(settings.log_level, settings.log_format)
    open_model(_length_model(settings))  # this imports nearly all that is ever imported
    gc.freeze()  # imported objects stay: collections need not scan them again
    gc.set_threshold(10_000, 20, 20)  # seldom: requests leave few reference cycles
    return settings


def main() -> None:
    settings = prepared()
    runtime.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
