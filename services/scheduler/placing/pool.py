"""The engines that this replica knows: which there are, whether they are up, what they serve."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp

from foretell.config import parse_instances as instances_of_cluster
from foretell.config.instances import Members, parse_members
from foretell.placement.events import (
    Event,
    InstanceDown,
    InstanceDraining,
    InstanceRemoved,
    InstanceTakenBack,
    InstanceUp,
)
from foretell.services.process.peer import read_bounded
from foretell.services.process.reread import Reread
from foretell.services.process.traffic import OPEN, Traffic
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.instance import EMULATED, KINDS, ORDER, RESTS, PoolInstance

logger = logging.getLogger(__name__)

_MOST_PROBE_BYTES = 4 << 20
_WAKE_TIMEOUT_S = 120.0
"""Waking takes long: weights are loaded from the host's memory or from a disk."""
_MODELS_EVERY = 4  # health probes between two looks at /v1/models


class Resting(Exception):
    """The engine is up, but computes nothing: it is asleep or paused."""


class Pool:
    """Keeps `instances` up to date: reads their configuration and probes their health."""

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
        wakes: bool = False,
        traffic: Traffic = OPEN,
    ) -> None:
        self.instances: dict[str, PoolInstance] = {}
        self.listener: Callable[[Event], None] = lambda event: None
        """Called with the events of instances: up, down, draining, taken back and removed."""
        self.traffic = traffic
        self._began_s = time.monotonic()
        self._first_seen_unix_s: dict[str, int] = {}
        self._listed: dict[str, dict[str, object]] = {}
        self._client = client
        self._headers = engine_authorization(engine_api_key)
        self._metrics = metrics
        self._interval_s = health_interval_s
        self._timeout_s = health_timeout_s
        self._failures = health_failures
        self._wakes = wakes
        self._file: Reread | None = None
        try:
            if source.lstrip().startswith(("[", "{")):
                self.take(parse_members(source))
            else:
                path = Path(source)
                self._file = Reread("instances", lambda: self._read(path), path)
        except ValueError as error:
            raise SystemExit(str(error)) from error
        except OSError as error:
            raise SystemExit(f"instances: cannot read {source}: {error.strerror}") from error

    async def run(self) -> None:
        """Probe all instances periodically until cancelled."""
        async with asyncio.TaskGroup() as probes:
            while True:
                if self._file is not None:
                    self._file.look()
                for instance in self.instances.values():
                    # Each has its own task, so that one that hangs does not delay the others.
                    if instance.probing is None or instance.probing.done():
                        instance.probing = probes.create_task(self._probe(instance))
                await asyncio.sleep(self._interval_s)

    def models(self) -> dict[str, bool]:
        """Models that an instance has served, or may serve once it is up or started. The value
        says whether all engines of the model are emulated."""
        served: dict[str, bool] = {}
        for instance in self.instances.values():
            for name in instance.model_names:
                served[name] = served.get(name, True) and instance.emulated
        listed = {name: card.get("owned_by") == EMULATED for name, card in self._listed.items()}
        expected = {n: False for i in self.instances.values() if not i.model_names for n in i.names}
        return expected | listed | served

    def only_model(self) -> str:
        """The served model if there is exactly one; otherwise ""."""
        heard = bool(self._listed) or any(i.model_names for i in self.instances.values())
        models = self.models() if heard else {}
        return next(iter(models)) if len(models) == 1 else ""

    def may_serve(self, model: str) -> bool:
        """Whether `model` is one of `models`. Also True while no instance has listed its models:
        it may serve adapters and other names, so the request waits for one."""
        if self._wakes:
            self._want(model)
        if model in self._listed:
            return True
        heard = bool(self._listed)
        for instance in self.instances.values():
            if model in (instance.model_names or instance.names):
                return True
            heard |= bool(instance.model_names)
        if heard:  # it may be an adapter that was just loaded
            for instance in self.instances.values():
                instance.probes = 0
        return not heard

    def _want(self, model: str) -> None:
        """Have engines that serve the model woken if they sleep, unless one of them is up."""
        serving = [each for each in self.instances.values() if model in each.names]
        if not any(each.healthy for each in serving):
            for each in serving:
                each.wanted = True

    def cards(self) -> dict[str, dict[str, object]]:
        """Each model as `/v1/models` shows it. `created` is when this replica first saw it, because
        vLLM states the current time; `max_model_len` is the shortest of its engines."""
        found: dict[str, dict[str, object]] = {}
        for name, emulated in self.models().items():
            cards = self._cards_of(name)
            found[name] = {
                "id": name,
                "object": "model",
                "created": self._first_seen_unix_s.setdefault(name, int(time.time())),
                "owned_by": EMULATED if emulated else "foretell",
                "root": cards[0].get("root", name),
                "parent": cards[0].get("parent"),
                "max_model_len": self.max_model_len(name),
            }
        return found

    def max_model_len(self, model: str) -> int | None:
        """The shortest context in tokens of the engines with this model; None if not known."""
        lengths = (card.get("max_model_len") for card in self._cards_of(model))
        return min((n for n in lengths if isinstance(n, int)), default=None)

    def _cards_of(self, model: str) -> list[dict[str, object]]:
        served = [i.cards[model] for i in self.instances.values() if model in i.cards]
        return served or [self._listed.get(model, {})]

    @property
    def ready(self) -> bool:
        """Whether an instance can answer requests, or one would be started for them."""
        return bool(self._listed) or any(
            i.healthy and i.model_names for i in self.instances.values()
        )

    def out_for_s(self, model: str = "") -> float:
        """Seconds for which no engine that serves `model` has been up; "": no engine at all.

        This is also the best guess for how much longer the outage will last, as nothing else is
        known of it.
        """
        serving = (i for i in self.instances.values() if not model or model in i.names)
        return time.monotonic() - max([self._began_s, *(i.up_s for i in serving)])

    async def _probe(self, instance: PoolInstance) -> None:
        url = instance.config.url
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._get(instance, "health")
                is_new = not instance.model_names or not instance.healthy
                if is_new or instance.probes % _MODELS_EVERY == 0:
                    await self._learn_models(instance)
                if instance.kind == "vllm":
                    await self._check_rest(instance)
        except Resting as error:
            self._probe_failed(instance, error)
            if self._wakes and instance.wanted and str(error) == "asleep":
                await self._wake(instance)
            return
        except Exception as error:
            # Probing goes on after any error: without it no instance comes up again.
            self._probe_failed(instance, error)
            return
        instance.probes += 1
        instance.failures = 0
        instance.up_s = time.monotonic()
        instance.forget_answer_delay(self._interval_s)
        if not instance.healthy:
            instance.refuses_fields = False
            logger.info("%s is up at %s", instance.config.instance_id, url)
        instance.healthy = True
        instance.is_down = False
        self._report(instance)
        if self.instances.get(instance.config.instance_id) is not instance:
            return
        if instance.listener_knows or not instance.config.draining:
            instance.listener_knows = True
            self.listener(
                InstanceUp(
                    instance.config.instance_id,
                    instance.model_names,
                    heard_s=instance.heard_s(),
                    lengths=instance.lengths,
                )
            )

    def _probe_failed(self, instance: PoolInstance, error: Exception) -> None:
        instance.failures += 1
        # A refused connection is certain; a slow answer counts only if it repeats.
        refused = isinstance(error, aiohttp.ClientConnectorError | Resting)
        if refused or instance.failures >= self._failures:
            if instance.healthy or not instance.is_down:
                logger.warning("%s is down: %r", instance.config.instance_id, error)
            instance.healthy = False
            instance.is_down = True
            if not isinstance(error, Resting):
                instance.rests = RESTS.copy()  # it may be another engine than before
            if self.instances.get(instance.config.instance_id) is instance:
                self.listener(InstanceDown(instance.config.instance_id))
            for call in list(instance.when_down):
                call()
        self._report(instance)

    async def _get(self, instance: PoolInstance, path: str) -> bytes:
        """The body of an engine's answer to a probe; raises ValueError if it is too long."""
        url = f"{instance.config.url}/{path}"
        async with self._client.get(url, headers=self._headers) as answer:
            answer.raise_for_status()
            return await read_bounded(answer, _MOST_PROBE_BYTES)

    async def _check_rest(self, instance: PoolInstance) -> None:
        """Raise `Resting` if it is asleep or paused. Paths it does not know are not asked again."""
        for path, state in list(instance.rests.items()):
            try:
                answer = json.loads(await self._get(instance, path))
            except (aiohttp.ClientResponseError, ValueError):
                answer = None
            if not isinstance(answer, dict) or path not in answer:
                del instance.rests[path]
            elif answer[path] is True:
                raise Resting(state)
        instance.wanted = False

    async def _wake(self, instance: PoolInstance) -> None:
        """Wake a sleeping engine. A paused one is left for its operator to resume."""
        logger.info("%s is waked: a request asks for it", instance.config.instance_id)
        instance.wanted = False
        url, timeout = f"{instance.config.url}/wake_up", aiohttp.ClientTimeout(_WAKE_TIMEOUT_S)
        try:
            async with self._client.post(url, headers=self._headers, timeout=timeout) as answer:
                answer.raise_for_status()
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            logger.warning("%s cannot be waked: %r", instance.config.instance_id, error)

    async def _learn_models(self, instance: PoolInstance) -> None:
        cards = json.loads(await self._get(instance, "v1/models"))["data"]
        instance.cards = {str(card["id"]): card for card in cards}
        instance.model_names = frozenset(instance.cards)
        now = int(time.time())
        for name in instance.cards:
            self._first_seen_unix_s.setdefault(name, now)
        kinds = [KINDS.get(str(card.get("owned_by")), "openai") for card in cards]
        instance.emulated = "emulated" in kinds
        kind = min(kinds, key=ORDER.index, default=instance.kind)
        if instance.config.kind not in ("", "openai"):
            kind = instance.config.kind
        if kind != instance.kind:
            instance.kind, instance.refuses_fields = kind, False
            fields = "get fields of vLLM's" if instance.takes_fields else "stay as they are"
            name = instance.config.instance_id
            logger.info("%s is of the kind %s: its requests %s", name, kind, fields)
        self._listed.update({n: c for n, c in instance.cards.items() if n in self._listed})

    def _report(self, instance: PoolInstance) -> None:
        instance_id = instance.config.instance_id
        if self.instances.get(instance_id) is not instance:
            return  # removed while it was probed
        self._forget(instance_id)  # its kind may have changed
        self._metrics.healthy.labels(instance_id, instance.kind).set(instance.healthy)

    def _forget(self, instance_id: str) -> None:
        for engine in ORDER:
            self._metrics.healthy.remove(instance_id, engine)

    def _read(self, path: Path) -> None:
        text = path.read_text()
        if path.suffix in (".yaml", ".yml"):
            text = json.dumps(instances_of_cluster(text, path.absolute().parent))
        self.take(parse_members(text))

    def take(self, members: Members) -> None:
        """Replace the list of instances; those that stay keep what is known of them."""
        self._listed = {name: self._listed.get(name, {}) for name in members.models}
        known = self.instances
        self.instances = {}
        for config in members.instances:
            old = known.get(config.instance_id)
            if old is not None and config == replace(old.config, draining=config.draining):
                self.instances[config.instance_id] = known.pop(config.instance_id)
                if config != old.config:
                    old.config = config
                    event = InstanceDraining if config.draining else InstanceTakenBack
                    self.listener(event(config.instance_id))
                continue
            self.instances[config.instance_id] = PoolInstance(config)
        for instance_id in known:
            self._forget(instance_id)
            self.listener(InstanceRemoved(instance_id))


def engine_authorization(api_key: str) -> dict[str, str]:
    """The header that engines started with `--api-key` require; empty without a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
