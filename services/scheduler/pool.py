"""The engines this replica knows: who they are, whether they live, what was sent to them."""

import asyncio
import json
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx

from foretell.model import Load
from foretell.telemetry import SchedulerMetrics
from foretell.v1 import predictor_pb2_grpc

logger = logging.getLogger(__name__)

QPM_WINDOW_S = 60.0
_MODELS_EVERY = 20  # health probes between two looks at /v1/models
_GRPC_OPTIONS = [
    # A sidecar that comes back must be noticed within a second, not after gRPC's default 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to a predictor or the tagger that notices a restart quickly."""
    return grpc.aio.insecure_channel(address, options=_GRPC_OPTIONS)


class Breaker:
    """Spares a peer that fails: after each failure in a row it is left alone twice as long."""

    FIRST_S, LONGEST_S = 0.1, 5.0

    def __init__(self) -> None:
        self._failures = 0
        self._retry_at = 0.0

    @property
    def open(self) -> bool:
        return time.monotonic() < self._retry_at

    def failed(self) -> None:
        pause = min(self.LONGEST_S, self.FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        self._retry_at = time.monotonic() + pause

    def succeeded(self) -> None:
        self._failures = 0
        self._retry_at = 0.0


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One engine and its sidecar, as configured."""

    instance_id: str
    url: str
    predictor: str = ""


@dataclass(eq=False)
class Instance:
    """One engine as this replica sees it."""

    config: InstanceConfig
    channel: grpc.aio.Channel | None = None
    stub: predictor_pb2_grpc.PredictorStub | None = None
    healthy: bool = False
    down: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while probes fail: whoever waits for this engine's first byte gives up."""
    model_names: frozenset[str] = frozenset()
    emulated: bool = False
    outstanding: int = 0
    dispatched_total: int = 0
    last_load: tuple[float, Load] | None = None
    """When (monotonic seconds) and what the predictor last said."""
    breaker: Breaker = field(default_factory=Breaker)
    failures: int = 0
    probes: int = 0
    _dispatched_at: deque[float] = field(default_factory=deque)

    def note_dispatch(self) -> None:
        self.outstanding += 1
        self.dispatched_total += 1
        self._dispatched_at.append(time.monotonic())

    def dispatched_last_minute(self) -> int:
        oldest = time.monotonic() - QPM_WINDOW_S
        while self._dispatched_at and self._dispatched_at[0] < oldest:
            self._dispatched_at.popleft()
        return len(self._dispatched_at)

    def load_within(self, seconds: float) -> Load | None:
        """The last known load, if it is no older than `seconds`."""
        if self.last_load is None or time.monotonic() - self.last_load[0] > seconds:
            return None
        return self.last_load[1]


class Pool:
    """Keeps `instances` true: reads their configuration, probes their health."""

    def __init__(
        self,
        source: str,
        client: httpx.AsyncClient,
        metrics: SchedulerMetrics,
        *,
        health_interval_s: float,
        health_timeout_s: float,
        health_failures: int,
    ) -> None:
        self.instances: dict[str, Instance] = {}
        self._source = source
        self._mtime = 0.0
        self._client = client
        self._metrics = metrics
        self._interval_s = health_interval_s
        self._timeout_s = health_timeout_s
        self._failures = health_failures
        self._configure(parse_instances(self._read()))

    async def run(self) -> None:
        """Probe all instances, again and again, until cancelled."""
        while True:
            self._reload()
            await asyncio.gather(*(self._probe(i) for i in list(self.instances.values())))
            await asyncio.sleep(self._interval_s)

    def healthy(self, model: str) -> list[Instance]:
        """Instances that serve `model` and answered their last probe."""
        return [i for i in self.instances.values() if i.healthy and model in i.model_names]

    def models(self) -> dict[str, bool]:
        """Models that some instance has served, and whether all their engines are emulated."""
        known: dict[str, bool] = {}
        for instance in self.instances.values():
            for name in instance.model_names:
                known[name] = known.get(name, True) and instance.emulated
        return known

    @property
    def ready(self) -> bool:
        return any(i.healthy and i.model_names for i in self.instances.values())

    def suspect(self, instance: Instance) -> None:
        """Place nothing on `instance` until its next successful probe."""
        instance.healthy = False

    async def close(self) -> None:
        await asyncio.gather(
            *(i.channel.close(None) for i in self.instances.values() if i.channel is not None)
        )

    async def _probe(self, instance: Instance) -> None:
        url = instance.config.url
        try:
            answer = await self._client.get(f"{url}/health", timeout=self._timeout_s)
            answer.raise_for_status()
            if not instance.model_names or instance.probes % _MODELS_EVERY == 0:
                await self._learn_models(instance)
            instance.probes += 1
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            self._probe_failed(instance, error)
            return
        instance.failures = 0
        if not instance.healthy:
            logger.info("%s is up at %s", instance.config.instance_id, url)
        instance.healthy = True
        instance.down.clear()
        self._report(instance)

    def _probe_failed(self, instance: Instance, error: Exception) -> None:
        instance.failures += 1
        # A refused connection is certain; a slow answer must repeat itself to be believed.
        refused = isinstance(error, httpx.ConnectError)
        if refused or instance.failures >= self._failures:
            if instance.healthy or not instance.down.is_set():
                logger.warning("%s is down: %r", instance.config.instance_id, error)
            instance.healthy = False
            instance.down.set()
        self._report(instance)

    async def _learn_models(self, instance: Instance) -> None:
        answer = await self._client.get(f"{instance.config.url}/v1/models", timeout=self._timeout_s)
        answer.raise_for_status()
        cards = answer.json()["data"]
        instance.model_names = frozenset(str(card["id"]) for card in cards)
        instance.emulated = any(card.get("owned_by") == "foretell-emulated" for card in cards)

    def _report(self, instance: Instance) -> None:
        labels = (instance.config.instance_id, "emulated" if instance.emulated else "vllm")
        self._metrics.healthy.labels(*labels).set(instance.healthy)

    def _read(self) -> str:
        if self._source.lstrip().startswith("["):
            return self._source
        path = Path(self._source)
        try:
            self._mtime = path.stat().st_mtime
            return path.read_text()
        except OSError as error:
            raise SystemExit(f"instances: cannot read {path}: {error.strerror}") from error

    def _reload(self) -> None:
        """Take in a changed instances file; a broken one is reported and the old kept."""
        if self._source.lstrip().startswith("["):
            return
        try:
            mtime = Path(self._source).stat().st_mtime
            if mtime == self._mtime:
                return
            self._configure(parse_instances(self._read()))
        except (OSError, ValueError, SystemExit) as error:
            logger.warning("instances file not taken in, the old list stays: %s", error)

    def _configure(self, configs: list[InstanceConfig]) -> None:
        known = self.instances
        self.instances = {}
        for config in configs:
            old = known.get(config.instance_id)
            if old is not None and old.config == config:
                self.instances[config.instance_id] = old
                continue
            instance = Instance(config)
            if config.predictor:
                instance.channel = open_channel(config.predictor)
                instance.stub = predictor_pb2_grpc.PredictorStub(instance.channel)
            self.instances[config.instance_id] = instance


def parse_instances(text: str) -> list[InstanceConfig]:
    """The configured instances; raises `ValueError` that names what is wrong."""
    items = json.loads(text)
    if not isinstance(items, list):
        raise ValueError("instances: must be a JSON list")
    configs: list[InstanceConfig] = []
    for item in items:
        if not isinstance(item, dict) or not item.get("instance_id") or not item.get("url"):
            raise ValueError(f"instances: {item!r} needs instance_id and url")
        unknown = set(item) - {"instance_id", "url", "predictor"}
        if unknown:
            raise ValueError(f"instances: unknown keys {sorted(unknown)}")
        configs.append(
            InstanceConfig(item["instance_id"], item["url"].rstrip("/"), item.get("predictor", ""))
        )
    if len({c.instance_id for c in configs}) != len(configs):
        raise ValueError("instances: instance_id must be unique")
    return configs
