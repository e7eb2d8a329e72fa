"""The engines this replica knows: who they are, whether they live, what was sent to them."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import aiohttp
import grpc
from yarl import URL

from foretell.config import parse_instances as instances_of_cluster
from foretell.placement.events import Event, InstanceDown, InstanceRemoved, InstanceUp
from foretell.telemetry import SchedulerMetrics
from foretell.v1 import predictor_pb2_grpc
from services.process.traffic import OPEN, Traffic
from services.scheduler.placing.peers import open_channel

logger = logging.getLogger(__name__)

_ANSWER_DELAY_WEIGHT = 0.1  # of the newest stream in the learned delay
_LONGEST_ANSWER_DELAY_S = 2.0
_MODELS_EVERY = 20  # health probes between two looks at /v1/models


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
    cards: dict[str, dict[str, object]] = field(default_factory=dict)
    """What the engine says of its models and LoRA adapters, by their names."""
    model_names: frozenset[str] = frozenset()
    emulated: bool = False
    answer_delay_s: float = 0.0
    """Learned: from the engine's first token to its first byte here."""
    heard_s: Callable[[], float] = lambda: -inf
    """When the last byte of an answer came from it, on the event loop's clock."""
    failures: int = 0
    probes: int = 0
    probing: asyncio.Task[None] | None = None

    def learn_answer_delay(self, sample_s: float) -> None:
        sample_s = min(_LONGEST_ANSWER_DELAY_S, max(0.0, sample_s))
        self.answer_delay_s += _ANSWER_DELAY_WEIGHT * (sample_s - self.answer_delay_s)


class Pool:
    """Keeps `instances` true: reads their configuration, probes their health."""

    def __init__(
        self,
        source: str,
        client: aiohttp.ClientSession,
        metrics: SchedulerMetrics,
        *,
        engine_api_key: str,
        health_interval_s: float,
        health_timeout_s: float,
        health_failures: int,
        traffic: Traffic = OPEN,
    ) -> None:
        self.instances: dict[str, Instance] = {}
        self.listener: Callable[[Event], None] = lambda event: None
        """Is told which instances are up, down and removed."""
        self._source = source
        self.traffic = traffic
        self._mtime = 0.0
        self._complaint = ""
        self._first_seen_unix_s: dict[str, int] = {}
        self._client = client
        self._headers = engine_authorization(engine_api_key)
        self._metrics = metrics
        self._interval_s = health_interval_s
        self._timeout_s = health_timeout_s
        self._failures = health_failures
        try:
            self._configure(parse_instances(self._read()))
        except ValueError as error:
            raise SystemExit(str(error)) from error

    async def run(self) -> None:
        """Probe all instances, again and again, until cancelled."""
        async with asyncio.TaskGroup() as probes:
            while True:
                self._reload()
                for instance in self.instances.values():
                    # Each at its own pace: one that hangs must not delay news of the others.
                    if instance.probing is None or instance.probing.done():
                        instance.probing = probes.create_task(self._probe(instance))
                await asyncio.sleep(self._interval_s)

    def models(self) -> dict[str, bool]:
        """Models that some instance has served, and whether all their engines are emulated."""
        known: dict[str, bool] = {}
        for instance in self.instances.values():
            for name in instance.model_names:
                known[name] = known.get(name, True) and instance.emulated
        return known

    def cards(self) -> dict[str, dict[str, object]]:
        """Each model as `/v1/models` shows it: `created` is when it was first seen here, because
        vLLM says the present time; of several engines the shortest `max_model_len` counts."""
        found: dict[str, dict[str, object]] = {}
        for name, emulated in self.models().items():
            cards = self._cards_of(name)
            found[name] = {
                "id": name,
                "object": "model",
                "created": self._first_seen_unix_s[name],
                "owned_by": "foretell-emulated" if emulated else "foretell",
                "root": cards[0].get("root", name),
                "parent": cards[0].get("parent"),
                "max_model_len": self.max_model_len(name),
            }
        return found

    def max_model_len(self, model: str) -> int | None:
        """The shortest of the engines that serve the model; None where none is known."""
        lengths = (card.get("max_model_len") for card in self._cards_of(model))
        return min((n for n in lengths if isinstance(n, int)), default=None)

    def _cards_of(self, model: str) -> list[dict[str, object]]:
        return [i.cards[model] for i in self.instances.values() if model in i.cards]

    @property
    def ready(self) -> bool:
        return any(i.healthy and i.model_names for i in self.instances.values())

    async def close(self) -> None:
        await asyncio.gather(
            *(i.channel.close(None) for i in self.instances.values() if i.channel is not None)
        )

    async def _probe(self, instance: Instance) -> None:
        url = instance.config.url
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._client.get(f"{url}/health", headers=self._headers) as answer:
                    answer.raise_for_status()
                    await answer.read()
                if not instance.model_names or instance.probes % _MODELS_EVERY == 0:
                    await self._learn_models(instance)
        except Exception as error:
            # Whatever an engine answers, probing goes on: without it nothing comes back up.
            self._probe_failed(instance, error)
            return
        instance.probes += 1
        instance.failures = 0
        if not instance.healthy:
            logger.info("%s is up at %s", instance.config.instance_id, url)
        instance.healthy = True
        instance.down.clear()
        self._report(instance)
        if self.instances.get(instance.config.instance_id) is instance:
            self.listener(
                InstanceUp(
                    instance.config.instance_id,
                    instance.model_names,
                    instance.stub is not None,
                    instance.heard_s(),
                )
            )

    def _probe_failed(self, instance: Instance, error: Exception) -> None:
        instance.failures += 1
        # A refused connection is certain; a slow answer must repeat itself to be believed.
        refused = isinstance(error, aiohttp.ClientConnectorError)
        if refused or instance.failures >= self._failures:
            if instance.healthy or not instance.down.is_set():
                logger.warning("%s is down: %r", instance.config.instance_id, error)
            instance.healthy = False
            instance.down.set()
            if self.instances.get(instance.config.instance_id) is instance:
                self.listener(InstanceDown(instance.config.instance_id))
        self._report(instance)

    async def _learn_models(self, instance: Instance) -> None:
        url = f"{instance.config.url}/v1/models"
        async with self._client.get(url, headers=self._headers) as answer:
            answer.raise_for_status()
            cards = (await answer.json(content_type=None))["data"]
        instance.cards = {str(card["id"]): card for card in cards}
        instance.model_names = frozenset(instance.cards)
        now = int(time.time())
        for name in instance.cards:
            self._first_seen_unix_s.setdefault(name, now)
        instance.emulated = any(card.get("owned_by") == "foretell-emulated" for card in cards)

    def _report(self, instance: Instance) -> None:
        instance_id = instance.config.instance_id
        if self.instances.get(instance_id) is not instance:
            return  # taken off the list while it was probed
        self._forget(instance_id)  # what it was thought to be before it said what it is
        engine = "emulated" if instance.emulated else "vllm"
        self._metrics.healthy.labels(instance_id, engine).set(instance.healthy)

    def _forget(self, instance_id: str) -> None:
        for engine in ("emulated", "vllm"):
            self._metrics.healthy.remove(instance_id, engine)

    def _read(self) -> str:
        if self._source.lstrip().startswith("["):
            return self._source
        path = Path(self._source)
        try:
            self._mtime = path.stat().st_mtime
            text = path.read_text()
        except OSError as error:
            raise SystemExit(f"instances: cannot read {path}: {error.strerror}") from error
        is_cluster = path.suffix in (".yaml", ".yml")
        folder = path.absolute().parent
        return json.dumps(instances_of_cluster(text, folder)) if is_cluster else text

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
            if str(error) != self._complaint:  # once, not at every probe
                logger.warning("instances file not taken in, the old list stays: %s", error)
            self._complaint = str(error)
        else:
            self._complaint = ""

    def _configure(self, configs: list[InstanceConfig]) -> None:
        known = self.instances
        self.instances = {}
        for config in configs:
            old = known.get(config.instance_id)
            if old is not None and old.config == config:
                self.instances[config.instance_id] = known.pop(config.instance_id)
                continue
            instance = Instance(config)
            if config.predictor:
                instance.channel = open_channel(config.predictor, self.traffic)
                instance.stub = predictor_pb2_grpc.PredictorStub(instance.channel)
            self.instances[config.instance_id] = instance
        # Requests in progress hold on to theirs; the last one's end closes its channel.
        for instance_id in known:
            self._forget(instance_id)
            self.listener(InstanceRemoved(instance_id))


def engine_authorization(api_key: str) -> dict[str, str]:
    """The header that engines started with `--api-key` want; empty without a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def parse_instances(text: str) -> list[InstanceConfig]:
    """The configured instances; raises `ValueError` that names what is wrong."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"instances: not valid JSON: {error}") from error
    if not isinstance(items, list):
        raise ValueError("instances: must be a JSON list")
    configs = [_parse_instance(item) for item in items]
    if len({c.instance_id for c in configs}) != len(configs):
        raise ValueError("instances: instance_id must be unique")
    return configs


def _parse_instance(item: object) -> InstanceConfig:
    if not isinstance(item, dict) or not item.get("instance_id") or not item.get("url"):
        raise ValueError(f"instances: {item!r} needs instance_id and url")
    unknown = set(item) - {"instance_id", "url", "predictor"}
    if unknown:
        raise ValueError(f"instances: unknown keys {sorted(unknown)}")
    if not all(isinstance(value, str) for value in item.values()):
        raise ValueError(f"instances: {item!r} must have strings only")
    if not re.fullmatch(r"[!-~]+", item["instance_id"]):
        raise ValueError(f"instances: instance_id {item['instance_id']!r} is no header value")
    try:
        url = URL(item["url"])
    except ValueError as error:
        raise ValueError(f"instances: url {item['url']!r}: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"instances: url {item['url']!r} must be http://HOST[:PORT]")
    return InstanceConfig(item["instance_id"], item["url"].rstrip("/"), item.get("predictor", ""))
