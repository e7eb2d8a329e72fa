"""A replay of a live scheduler's inputs in virtual time gives the same decisions.

The inputs are the events of its driver and the messages of predictors, with their times. The same
driver, core and snapshot cache get them again, with a virtual clock.

The cluster is real except for its emulated engines: it has calibrating sidecars, the tagger, a
scheduler on a socket, clients that disconnect, and an engine that stops during the run.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from emulated_engine import MODEL, running_engine
from schedulers import Scheduler, running, until

from foretell.config import PredictorSettings, TaggerSettings
from foretell.engine import snapshot_cache
from foretell.engine.published import Published
from foretell.engine.snapshot_cache import FollowedEngine, SnapshotCache
from foretell.length.distribution import knots
from foretell.model import RequestSpec
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.cached import CachedPredictions
from foretell.placement.driver import Driver
from foretell.placement.ports import Predicted
from foretell.policy import Policy, make_policy
from foretell.services.predictor.__main__ import serve as serve_predictor
from foretell.services.scheduler import __main__ as main
from foretell.services.scheduler.placing import placer, predictors
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.tagger.server import serve as serve_tagger

ENGINES, REQUESTS = 3, 60


@dataclass
class Recording:
    """All inputs of a scheduler, in order and with their times, and its decisions."""

    told: list[tuple[float, Callable[["Replay"], None]]] = field(default_factory=list)
    draws: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    """The time that each prediction took, in seconds."""
    decided: list[str] = field(default_factory=list)
    config: PlacementConfig = field(default_factory=PlacementConfig)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record what schedulers started from now on do."""
        recording, loop_time = self, lambda: asyncio.get_running_loop().time()

        class Cached(CachedPredictions):
            def predict(self, *args: Any, **options: Any) -> Predicted:
                found = super().predict(*args, **options)
                recording.costs.append(found.took_s)
                return found

        class Placer(placer.Placer):
            def __init__(self, policy: Policy, config: PlacementConfig, rng: Random, **rest: Any):
                recording.config, draw = config, rng.random
                rng.random = lambda: recording.note_draw(draw())  # type: ignore[method-assign]
                super().__init__(policy, config, rng, record=recording.note_event, **rest)

            def dispatch(self, effect: effects.Dispatch) -> None:
                recording.decided.append(str(effect))
                super().dispatch(effect)

            def refuse(self, effect: effects.Refuse) -> None:
                recording.decided.append(str(effect))
                super().refuse(effect)

        class Engine(FollowedEngine):
            name = ""

            def hear(self, message: Published, now_s: float) -> None:
                name = self.name
                recording.told.append((now_s, lambda to: to.hear(name, message, now_s)))
                super().hear(message, now_s)

            def begin(self, now_s: float) -> Any:
                name = self.name
                recording.told.append((now_s, lambda to: to.engine(name).begin(now_s)))
                return super().begin(now_s)

            def ended(self, request_id: str) -> None:
                name, now_s = self.name, loop_time()
                recording.told.append((now_s, lambda to: to.engine(name).ended(request_id)))
                super().ended(request_id)

            def revise(self, request: RequestSpec, now_s: float) -> float | None:
                name = self.name
                recording.told.append((now_s, lambda to: to.engine(name).revise(request, now_s)))
                return super().revise(request, now_s)

        class Cache(SnapshotCache):
            def follow(self, instance_id: str) -> FollowedEngine:
                engine = super().follow(instance_id)
                assert isinstance(engine, Engine)
                engine.name = instance_id
                recording.told.append((loop_time(), lambda to: to.follow(instance_id)))
                return engine

        monkeypatch.setattr(snapshot_cache, "FollowedEngine", Engine)
        monkeypatch.setattr(predictors, "SnapshotCache", Cache)
        monkeypatch.setattr(predictors, "CachedPredictions", Cached)
        monkeypatch.setattr(main, "Placer", Placer)
        # Every prediction reads the learned answer delay, whose changes are not recorded.
        monkeypatch.setattr(PoolInstance, "learn_answer_delay", lambda *_: None)

    def note_draw(self, draw: float) -> float:
        self.draws.append(draw)
        return draw

    def note_event(self, event: events.Event, now_s: float) -> None:
        self.told.append((now_s, lambda to: to.driver.tell(event)))


class Replay:
    """The same driver, core and cache in virtual time. Implements the core's ports."""

    def __init__(self, recording: Recording) -> None:
        self.time_s = 0.0
        self.decided: list[str] = []
        self._costs = iter(recording.costs)
        draws = iter(recording.draws)
        self._cached = CachedPredictions(SnapshotCache(knots))
        self.predict_one, self.wait = self._cached.predict_one, self._cached.wait
        self.core = PlacementCore(
            make_policy("slo"), recording.config, lambda: next(draws, 0.0), self
        )
        self.driver = Driver(self.core, self, self)
        for at_s, tell in recording.told:
            self.time_s = at_s
            tell(self)

    def follow(self, name: str) -> None:
        self._cached.cache.follow(name)

    def engine(self, name: str) -> FollowedEngine:
        return self._cached.cache[name]

    def hear(self, name: str, message: Published, now_s: float) -> None:
        self.engine(name).hear(message, now_s)

    def now_s(self) -> float:
        return self.time_s

    def at(self, at_s: float, action: Callable[[], None]) -> "Replay":
        return self  # the timer events that occurred were recorded

    def cancel(self) -> None:
        """Do nothing: `at` starts no timer."""

    def predict(self, *args: Any, **options: Any) -> Predicted:
        return self._cached.predict(*args, **options)._replace(took_s=next(self._costs))

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        self.engine(instance_id).reserve(spec, now_s)

    def dispatch(self, effect: effects.Dispatch) -> None:
        self.decided.append(str(effect))

    def refuse(self, effect: effects.Refuse) -> None:
        self.decided.append(str(effect))

    def nothing(self, effect: effects.Effect) -> None:
        """Do nothing: the effect's consequences were recorded."""

    recall = give_up = revise = degraded = nothing


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Scheduler, AsyncExitStack]]:
    """A scheduler with `ENGINES` engines, and the stack that stops the last engine."""
    async with AsyncExitStack() as stack:
        stop = asyncio.Event()
        stack.callback(stop.set)
        instances, peers, last = [], [], AsyncExitStack()
        for number in range(ENGINES):
            name = f"engine-{number}"
            owner = last if number == ENGINES - 1 else stack
            engine = await owner.enter_async_context(running_engine(folder, name=name))
            sidecar = f"unix://{folder}/predictor-{number}"
            settings = PredictorSettings(
                name=name,
                listen=sidecar,
                snapshot_endpoint=f"shm://{folder}/{name}.snapshots",
                profile="A30/Llama-2-7b-hf",
                ready_file=str(folder / f"predictor-{number}.ready"),
            )
            peers.append(asyncio.create_task(serve_predictor(settings, stop)))
            instances.append({"instance_id": name, "url": engine.url, "predictor": sidecar})
        tagger = TaggerSettings(
            listen=f"unix://{folder}/tagger", ready_file=str(folder / "tagger.ready")
        )
        peers.append(asyncio.create_task(serve_tagger(tagger, None, stop)))
        await until(lambda: len(list(folder.glob("*.ready"))) == len(peers))
        async with running(
            folder,
            instances=json.dumps(instances),
            policy="slo",
            tagger=f"unix://{folder}/tagger",
        ) as scheduler:
            await scheduler.until(lambda s: all(i["healthy"] for i in s["instances"]))
            yield scheduler, last
            await last.aclose()
        stop.set()
        await asyncio.gather(*peers)


async def send(scheduler: Scheduler, number: int, draws: Random) -> None:
    """Send one request; some clients disconnect before it has been answered."""
    await asyncio.sleep(draws.uniform(0.0, 0.8))
    body = {"model": MODEL, "prompt": "hello " * draws.randint(1, 200), "max_tokens": 30}
    headers = {"x-foretell-ttft-target-ms": "300"} if number % 3 == 0 else {}
    headers |= {"x-foretell-when-late": "reject"} if number % 6 == 0 else {}
    patience_s = draws.choice([20.0, 20.0, 0.05])
    with suppress(httpx.TimeoutException):
        await scheduler.client.post(
            "/v1/completions", json=body, headers=headers, timeout=patience_s
        )


async def test_a_live_run_replayed_gives_the_same_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, draws = Recording(), Random(5)
    recording.install(monkeypatch)
    async with cluster(tmp_path) as (scheduler, last_engine):
        clients = [asyncio.create_task(send(scheduler, n, draws)) for n in range(REQUESTS)]
        await scheduler.until(lambda status: status["requests_total"] >= REQUESTS // 3)
        await last_engine.aclose()
        await asyncio.gather(*clients)
        await scheduler.until_idle()
    assert sum("Dispatch(" in text for text in recording.decided) > REQUESTS // 2
    assert sum("prediction=Prediction(" in text for text in recording.decided) > REQUESTS // 2
    monkeypatch.undo()
    for ours, theirs in zip(Replay(recording).decided, recording.decided, strict=True):
        assert ours == theirs
