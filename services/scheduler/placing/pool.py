"""The engines this replica knows: who they are, whether they live, what was sent to them."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import exp, inf
from pathlib import Path

import aiohttp

from foretell.config import parse_instances as instances_of_cluster
from foretell.config.instances import InstanceConfig, Members, parse_members
from foretell.placement.events import (
    Event,
    InstanceDown,
    InstanceDraining,
    InstanceRemoved,
    InstanceTakenBack,
    InstanceUp,
)
from foretell.services.process.folders import file_version
from foretell.services.process.traffic import OPEN, Traffic
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.resting import Rest, Resting

logger = logging.getLogger(__name__)

_ANSWER_DELAY_WEIGHT = 0.1  # of the newest stream in the learned delay
_LONGEST_ANSWER_DELAY_S = 2.0
_ANSWER_DELAY_MEMORY_S = 30.0
"""Time constant by which the learned delay is forgotten: an engine that looks slow gets few
requests, and none from which it could be learned that it no longer is."""
_MOST_PROBE_BYTES = 4 << 20
_MODELS_EVERY = 4  # health probes between two looks at /v1/models
_EMULATED = "foretell-emulated"
_KINDS = {
    "vllm": "vllm",
    _EMULATED: "emulated",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt-llm",
}
"""Kinds of engines by the owner that their model cards name; others speak OpenAI's API."""
_ORDER = [_KINDS[_EMULATED], *(each for each in _KINDS.values() if each != "emulated"), "openai"]
"""Of an engine whose cards differ, the first one counts."""


@dataclass(eq=False)
class Instance:
    """One engine as this replica sees it."""

    config: InstanceConfig
    healthy: bool = False
    up_s: float = -inf
    """When a probe last found it up, in `time.monotonic`."""
    is_down: bool = False
    """Probes fail."""
    when_down: set[Callable[[], None]] = field(default_factory=set)
    """What is to be done once they do: whoever waits for this engine's first byte gives up."""
    cards: dict[str, dict[str, object]] = field(default_factory=dict)
    """What the engine says of its models and LoRA adapters, by their names."""
    model_names: frozenset[str] = frozenset()
    emulated: bool = False
    kind: str = "vllm"
    """What its model cards say that it is: one of `_KINDS`, or openai."""
    refuses_fields: bool = False
    """Learned: it has refused a request for them, since it was last seen to start."""
    answer_delay_s: float = 0.0
    """Learned: from the engine's first token to its first byte here."""
    heard_s: Callable[[], float] = lambda: -inf
    """When the last byte of an answer came from it, on the event loop's clock."""
    failures: int = 0
    probes: int = 0
    probing: asyncio.Task[None] | None = None
    rest: Rest = field(default_factory=Rest)
    told: bool = False
    """The listener knows it: one that was draining from the beginning gets nothing."""

    @property
    def names(self) -> frozenset[str]:
        """What it serves, as it says; before it has been up, as its configuration says."""
        named = frozenset((self.config.model,)) if self.config.model else frozenset()
        return self.model_names or named

    @property
    def lengths(self) -> dict[str, int]:
        """The longest context of each of its models in tokens, where it says so."""
        told = {name: card.get("max_model_len") for name, card in self.cards.items()}
        return {name: each for name, each in told.items() if type(each) is int}

    @property
    def takes_fields(self) -> bool:
        """Whether requests may have fields that are vLLM's own. Others may refuse what has any."""
        if self.refuses_fields:
            return False
        stated = self.config.kind
        if stated:
            return stated == "vllm"
        return bool(self.config.predictor) or self.kind in {"vllm", "emulated"}

    def judge_fields(self, status: int) -> None:
        """A request that was refused has got this answer when it was repeated without fields."""
        self.refuses_fields = status < 400
        if self.refuses_fields:
            name = self.config.instance_id
            logger.warning("%s refuses fields of vLLM's: its requests stay as they are", name)

    def forget_model(self, name: str) -> None:
        """It says that it does not serve the model: the next probe asks what it serves."""
        self.model_names -= {name}
        self.probes = 0

    def learn_answer_delay(self, sample_s: float) -> None:
        sample_s = min(_LONGEST_ANSWER_DELAY_S, max(0.0, sample_s))
        self.answer_delay_s += _ANSWER_DELAY_WEIGHT * (sample_s - self.answer_delay_s)

    def forget_answer_delay(self, seconds: float) -> None:
        """So much time has passed."""
        self.answer_delay_s *= exp(-seconds / _ANSWER_DELAY_MEMORY_S)


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
        wakes: bool = False,
        traffic: Traffic = OPEN,
    ) -> None:
        self.instances: dict[str, Instance] = {}
        self.listener: Callable[[Event], None] = lambda event: None
        """Is told which instances are up, down and removed."""
        self._source = source
        self.traffic = traffic
        self._version = (0, 0)  # of the file that was read
        self._began_s = time.monotonic()
        self._complaint = ""
        self._first_seen_unix_s: dict[str, int] = {}
        self._listed: dict[str, dict[str, object]] = {}
        self._client = client
        self._headers = engine_authorization(engine_api_key)
        self._metrics = metrics
        self._interval_s = health_interval_s
        self._timeout_s = health_timeout_s
        self._failures = health_failures
        self._wakes = wakes
        try:
            self.take(parse_members(self._read()))
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
        """Models that some instance has served, or may serve once it is up or started, and whether
        all their engines are emulated."""
        served: dict[str, bool] = {}
        for instance in self.instances.values():
            for name in instance.model_names:
                served[name] = served.get(name, True) and instance.emulated
        listed = {name: card.get("owned_by") == _EMULATED for name, card in self._listed.items()}
        expected = {n: False for i in self.instances.values() if not i.model_names for n in i.names}
        return expected | listed | served

    def only_model(self) -> str:
        """The model that is served, where there is one alone; otherwise ""."""
        heard = bool(self._listed) or any(i.model_names for i in self.instances.values())
        models = self.models() if heard else {}
        return next(iter(models)) if len(models) == 1 else ""

    def may_serve(self, model: str) -> bool:
        """Whether it is one of `models`; or nobody has been up, who might serve adapters and other
        names: the request waits for one."""
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
        """Whoever sleeps and serves the model is to be waked, if nobody else is up who does."""
        serving = [each for each in self.instances.values() if model in each.names]
        if not any(each.healthy for each in serving):
            for each in serving:
                each.rest.wanted = True

    def cards(self) -> dict[str, dict[str, object]]:
        """Each model as `/v1/models` shows it: `created` is when it was first seen here, because
        vLLM says the present time; of several engines the shortest `max_model_len` counts."""
        found: dict[str, dict[str, object]] = {}
        for name, emulated in self.models().items():
            cards = self._cards_of(name)
            found[name] = {
                "id": name,
                "object": "model",
                "created": self._first_seen_unix_s.setdefault(name, int(time.time())),
                "owned_by": _EMULATED if emulated else "foretell",
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
        served = [i.cards[model] for i in self.instances.values() if model in i.cards]
        return served or [self._listed.get(model, {})]

    @property
    def ready(self) -> bool:
        """Requests can be answered: by an instance, or by one that is started for them."""
        return bool(self._listed) or any(
            i.healthy and i.model_names for i in self.instances.values()
        )

    def out_for_s(self, model: str = "") -> float:
        """Seconds for which no engine that serves `model` has been up; "": no engine at all.

        They are also the best guess at how much longer it will be so, as of any outage of which
        nothing else is known.
        """
        serving = (i for i in self.instances.values() if not model or model in i.names)
        return time.monotonic() - max([self._began_s, *(i.up_s for i in serving)])

    async def _probe(self, instance: Instance) -> None:
        url = instance.config.url
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._client.get(f"{url}/health", headers=self._headers) as answer:
                    answer.raise_for_status()
                    await _read(answer)
                is_new = not instance.model_names or not instance.healthy
                if is_new or instance.probes % _MODELS_EVERY == 0:
                    await self._learn_models(instance)
                if instance.kind == "vllm":
                    await instance.rest.check(self._client, url, self._headers)
        except Resting as error:
            self._probe_failed(instance, error)
            if self._wakes and instance.rest.wanted and str(error) == "asleep":
                await self._wake(instance)
            return
        except Exception as error:
            # Whatever an engine answers, probing goes on: without it nothing comes back up.
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
        if instance.told or not instance.config.draining:
            instance.told = True
            self.listener(
                InstanceUp(
                    instance.config.instance_id,
                    instance.model_names,
                    heard_s=instance.heard_s(),
                    lengths=instance.lengths,
                )
            )

    def _probe_failed(self, instance: Instance, error: Exception) -> None:
        instance.failures += 1
        # A refused connection is certain; a slow answer must repeat itself to be believed.
        refused = isinstance(error, aiohttp.ClientConnectorError | Resting)
        if refused or instance.failures >= self._failures:
            if instance.healthy or not instance.is_down:
                logger.warning("%s is down: %r", instance.config.instance_id, error)
            instance.healthy = False
            instance.is_down = True
            if not isinstance(error, Resting):
                instance.rest.began()
            if self.instances.get(instance.config.instance_id) is instance:
                self.listener(InstanceDown(instance.config.instance_id))
            for call in list(instance.when_down):
                call()
        self._report(instance)

    async def _wake(self, instance: Instance) -> None:
        logger.info("%s is waked: a request asks for it", instance.config.instance_id)
        try:
            await instance.rest.wake(self._client, instance.config.url, self._headers)
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            logger.warning("%s cannot be waked: %r", instance.config.instance_id, error)

    async def _learn_models(self, instance: Instance) -> None:
        url = f"{instance.config.url}/v1/models"
        async with self._client.get(url, headers=self._headers) as answer:
            answer.raise_for_status()
            cards = json.loads(await _read(answer))["data"]
        instance.cards = {str(card["id"]): card for card in cards}
        instance.model_names = frozenset(instance.cards)
        now = int(time.time())
        for name in instance.cards:
            self._first_seen_unix_s.setdefault(name, now)
        kinds = [_KINDS.get(str(card.get("owned_by")), "openai") for card in cards]
        instance.emulated = "emulated" in kinds
        kind = min(kinds, key=_ORDER.index, default=instance.kind)
        if instance.config.kind not in ("", "openai"):
            kind = instance.config.kind
        if kind != instance.kind:
            instance.kind, instance.refuses_fields = kind, False
            fields = "get fields of vLLM's" if instance.takes_fields else "stay as they are"
            name = instance.config.instance_id
            logger.info("%s is of the kind %s: its requests %s", name, kind, fields)
        self._listed.update({n: c for n, c in instance.cards.items() if n in self._listed})

    def _report(self, instance: Instance) -> None:
        instance_id = instance.config.instance_id
        if self.instances.get(instance_id) is not instance:
            return  # taken off the list while it was probed
        self._forget(instance_id)  # what it was thought to be before it said what it is
        self._metrics.healthy.labels(instance_id, instance.kind).set(instance.healthy)

    def _forget(self, instance_id: str) -> None:
        for engine in _ORDER:
            self._metrics.healthy.remove(instance_id, engine)

    def _read(self) -> str:
        if self._source.lstrip().startswith(("[", "{")):
            return self._source
        path = Path(self._source)
        try:
            self._version = file_version(path)
            text = path.read_text()
        except OSError as error:
            raise SystemExit(f"instances: cannot read {path}: {error.strerror}") from error
        is_cluster = path.suffix in (".yaml", ".yml")
        folder = path.absolute().parent
        return json.dumps(instances_of_cluster(text, folder)) if is_cluster else text

    def _reload(self) -> None:
        """Take in a changed instances file; a broken one is reported and the old kept."""
        if self._source.lstrip().startswith(("[", "{")):
            return
        try:
            if file_version(Path(self._source)) == self._version:
                return
            self.take(parse_members(self._read()))
        except (OSError, ValueError, SystemExit) as error:
            if str(error) != self._complaint:  # once, not at every probe
                logger.warning("instances file not taken in, the old list stays: %s", error)
            self._complaint = str(error)
        else:
            self._complaint = ""

    def take(self, members: Members) -> None:
        """From now on these are the instances; those that stay keep what is known of them."""
        self._listed = {name: self._listed.get(name, {}) for name in members.models}
        known = self.instances
        self.instances = {}
        for config in members.instances:
            old = known.get(config.instance_id)
            if old is not None and config == replace(old.config, draining=config.draining):
                self.instances[config.instance_id] = known.pop(config.instance_id)
                if config != old.config:
                    old.config = config
                    told = InstanceDraining if config.draining else InstanceTakenBack
                    self.listener(told(config.instance_id))
                continue
            self.instances[config.instance_id] = Instance(config)
        for instance_id in known:
            self._forget(instance_id)
            self.listener(InstanceRemoved(instance_id))


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer to a probe; raises ValueError for one that is too long."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > _MOST_PROBE_BYTES:
            raise ValueError(f"an answer to a probe has more than {_MOST_PROBE_BYTES} bytes")
    return bytes(body)


def engine_authorization(api_key: str) -> dict[str, str]:
    """The header that engines started with `--api-key` want; empty without a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
