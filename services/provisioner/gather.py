"""Asks schedulers and predictors for the numbers on which decisions are based."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import aiohttp

from foretell.engine.snapshot_cache import SnapshotCache
from foretell.length.distribution import knots
from foretell.provision import Facts, InstanceFacts, InstancePhase
from foretell.services.process.peer import read_bounded
from foretell.services.process.snapshot_stream import SnapshotStream
from foretell.services.process.traffic import Traffic
from foretell.services.provisioner.batches import BatchService
from foretell.services.provisioner.complaints import Complaints
from foretell.services.provisioner.fleet import FleetView
from foretell.services.provisioner.tuning import TUNING
from foretell.v1 import predictor_pb2


@dataclass(slots=True)
class _Scheduler:
    """The last known state of one replica."""

    url: str
    heard_s: float = -inf
    replica_id: str = ""
    arrived_total: int = 0
    held: int = 0
    worst_e2e_s: float = 0.0
    worst_predicted_e2e_s: float = 0.0
    outstanding: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Requests in progress at each instance, and whether it is known to be draining."""
    arrived: int = 0
    """Requests that arrived between the last two answers."""
    lengths: Sequence[tuple[int, float]] = ()
    """Prompt tokens and predicted output tokens of a sample of them."""

    def take(self, status: dict[str, Any], now_s: float) -> None:
        """Take in its status, and count the requests that arrived since the one before.

        Raises KeyError, TypeError or ValueError if this is no status of a scheduler.
        """
        demand, replica_id = status["demand"], str(status["replica_id"])
        total = int(demand["arrived_total"])
        lengths = [(int(prompt), float(output)) for prompt, output in demand["lengths"]]
        outstanding = {
            str(each["instance_id"]): (int(each["outstanding"]), bool(each["draining"]))
            for each in status["instances"]
        }
        held, e2e_s = int(demand["held"]), float(demand["worst_e2e_s"])
        predicted_s = float(demand["worst_predicted_e2e_s"])
        arrived = total
        if replica_id == self.replica_id and total >= self.arrived_total:
            arrived = total - self.arrived_total
        elif not self.replica_id:
            arrived = 0  # arrivals before the first status say nothing about the rate now
        self.heard_s, self.replica_id, self.arrived_total = now_s, replica_id, total
        self.held, self.worst_e2e_s, self.worst_predicted_e2e_s = held, e2e_s, predicted_s
        self.outstanding = outstanding
        self.arrived, self.lengths = arrived, lengths[max(0, len(lengths) - arrived) :]


class _Look(SnapshotStream):
    """A predictor's stream, read only for its first message: following all engines like a scheduler
    would cost more than decisions need."""

    async def first(self) -> None:
        """Wait for the first message, at most `TUNING.answer_s`."""
        self._came = asyncio.Event()
        self.start()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(TUNING.answer_s):
                    await self._came.wait()
        finally:
            self.stop()

    def taken_in(self, message: predictor_pb2.Published) -> None:
        self._came.set()


@dataclass(slots=True)
class _Engine:
    """The predictor of one engine."""

    address: str
    stream: _Look
    heard_s: float
    """When it last heard from its engine; before that, when it was first asked."""


class Gatherer:
    """Keeps the last answers, so that a missing number has an age."""

    def __init__(
        self,
        schedulers: Sequence[str],
        client: aiohttp.ClientSession,
        traffic: Traffic,
        *,
        api_key: str,
        batches: str = "",
    ) -> None:
        """`batches` is the address of the batch service; empty: there is none."""
        self._schedulers = [_Scheduler(url.rstrip("/")) for url in schedulers]
        self._client = client
        self._traffic = traffic
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._cache = SnapshotCache(knots)
        self._engines: dict[str, _Engine] = {}
        self._complaints = Complaints()
        self._batches = BatchService(batches, traffic, self._complaints)

    async def close(self) -> None:
        for instance_id in list(self._engines):
            self._leave(instance_id)
        await self._batches.close()

    async def gather(self, seen: Sequence[FleetView], now_s: float, asked_for: int | None) -> Facts:
        """The facts at `now_s`, Unix time. Counts are those since the previous call."""
        self._know(seen, now_s)
        _, _, batches = await asyncio.gather(
            asyncio.gather(*(self._ask_scheduler(each, now_s) for each in self._schedulers)),
            asyncio.gather(*(self._ask_predictor(each, now_s) for each in self._engines.values())),
            self._batches.ask(now_s),
        )
        heard = [each.heard_s for each in self._schedulers]
        heard += [engine.heard_s for engine in self._engines.values()]
        schedulers = self._schedulers
        return Facts(
            now_s,
            [self._instance(each) for each in seen],
            arrived=sum(each.arrived for each in schedulers),
            lengths=tuple(length for each in schedulers for length in each.lengths),
            held=sum(each.held for each in schedulers),
            worst_e2e_s=max((each.worst_e2e_s for each in schedulers), default=0.0),
            worst_predicted_e2e_s=max(
                (each.worst_predicted_e2e_s for each in schedulers), default=0.0
            ),
            batches=batches,
            age_s=now_s - min(heard) if schedulers else inf,
            asked_for=asked_for,
        )

    def is_empty(self, instance_id: str, now_s: float) -> bool:
        """Whether a draining instance has no requests left: in this round, every scheduler has
        answered, knows that the instance drains and has no requests there."""
        nothing = (0, True)
        return all(
            each.heard_s == now_s and each.outstanding.get(instance_id, nothing) == nothing
            for each in self._schedulers
        )

    def _know(self, seen: Sequence[FleetView], now_s: float) -> None:
        """Follow the predictors of ready instances, and no others."""
        wanted = {
            each.config.instance_id: each.config.predictor
            for each in seen
            if each.phase is InstancePhase.READY and each.config.predictor
        }
        for instance_id, engine in list(self._engines.items()):
            if wanted.get(instance_id) != engine.address:
                self._leave(instance_id)
        for instance_id, address in wanted.items():
            if instance_id not in self._engines:
                followed = self._cache.follow(instance_id)
                stream = _Look(address, self._traffic, followed)
                # As if heard now: a predictor that never answers then ages like any other number.
                self._engines[instance_id] = _Engine(address, stream, now_s)

    def _leave(self, instance_id: str) -> None:
        self._engines.pop(instance_id).stream.stop()
        self._cache.leave(instance_id)

    def _instance(self, seen: FleetView) -> InstanceFacts:
        instance_id = seen.config.instance_id
        engine = self._engines.get(instance_id)
        if engine is not None and (snapshot := engine.stream.engine.snapshot) is not None:
            load = self._cache.load(instance_id)
            return InstanceFacts(
                instance_id,
                seen.phase,
                seen.since_s,
                load.running,
                load.waiting + load.reserved,
                load.max_num_seqs,
                load.used_blocks / max(1, load.total_blocks),
                lambda: snapshot,
            )
        sent = [each.outstanding.get(instance_id, (0, False))[0] for each in self._schedulers]
        return InstanceFacts(instance_id, seen.phase, seen.since_s, sum(sent))

    async def _ask_scheduler(self, scheduler: _Scheduler, now_s: float) -> None:
        scheduler.arrived, scheduler.lengths = 0, ()
        try:
            async with (
                asyncio.timeout(TUNING.answer_s),
                self._client.get(f"{scheduler.url}/status", headers=self._headers) as answer,
            ):
                answer.raise_for_status()
                body = await read_bounded(answer, TUNING.status_bytes)
                scheduler.take(json.loads(body), now_s)
            self._complaints.settle(scheduler.url)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._complaints.add(
                scheduler.url, f"scheduler {scheduler.url} does not answer: {error!r}"
            )
        except (KeyError, TypeError, ValueError) as error:
            self._complaints.add(
                scheduler.url, f"{scheduler.url} gives no status of a scheduler: {error!r}"
            )

    async def _ask_predictor(self, engine: _Engine, now_s: float) -> None:
        stream = engine.stream
        await stream.first()
        loop_s = asyncio.get_running_loop().time()
        if stream.engine.snapshot is not None:
            engine.heard_s = now_s - stream.engine.age_s(loop_s)
        if stream.engine.is_fresh(loop_s):
            self._complaints.settle(engine.address)
        elif now_s > engine.heard_s:  # not one that was added just now
            why = stream.unpredicted or "no snapshot came"
            self._complaints.add(engine.address, f"predictor {engine.address} tells nothing: {why}")
