"""What a live scheduler decided, its placement core decides again from the recorded events alone.

The cluster is real but for its engines, which are emulated: sidecars that calibrate and foretell,
the tagger, a scheduler on a socket, clients that leave, and an engine that stops in the midst.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from emulated_engine import MODEL, running_engine
from pydantic import TypeAdapter
from schedulers import Scheduler, running, until

from foretell.config import PredictorSettings, TaggerSettings
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.explanation import explain
from foretell.policy import Policy, make_policy
from foretell.services.predictor.__main__ import serve as serve_predictor
from foretell.services.scheduler.placing import placer
from foretell.services.tagger.server import serve as serve_tagger

ENGINES, REQUESTS = 3, 60


class Recording(PlacementCore):
    """A core that appends what it is told, draws and decides to a file, one JSON line each."""

    path: Path

    def __init__(self, policy: Policy, config: PlacementConfig, random: Any) -> None:
        super().__init__(policy, config, lambda: self._note("draw", random()))

    def step(self, event: events.Event, now_s: float) -> list[effects.Effect]:
        self._note(type(event).__name__, event, now_s)
        found = super().step(event, now_s)
        for effect in found:
            self._note("effect", str(effect))
        return found

    def _note(self, kind: str, what: Any, *more: Any) -> Any:
        plain = TypeAdapter(type(what)).dump_python(what)
        with self.path.open("a") as file:
            file.write(json.dumps([kind, plain, *more], default=sorted) + "\n")
        return what


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Scheduler, AsyncExitStack]]:
    """A scheduler before `ENGINES` engines; and the stack that stops the last of them."""
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
                snapshot_endpoint=f"ipc://{folder}/{name}.ipc",
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
            turn_deadline_s=0.02,
        ) as scheduler:
            await scheduler.until(lambda s: all(i["healthy"] for i in s["instances"]))
            yield scheduler, last
            await last.aclose()
        stop.set()
        await asyncio.gather(*peers)


async def send(scheduler: Scheduler, number: int, draws: Random) -> None:
    """One request; some clients leave before it has been answered."""
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
    Recording.path = tmp_path / "placements.jsonl"
    monkeypatch.setattr(placer, "PlacementCore", Recording)
    draws = Random(5)
    async with cluster(tmp_path) as (scheduler, last_engine):
        clients = [asyncio.create_task(send(scheduler, n, draws)) for n in range(REQUESTS)]
        await scheduler.until(lambda status: status["requests_total"] >= REQUESTS // 3)
        await last_engine.aclose()
        await asyncio.gather(*clients)
        await scheduler.until_idle()
    lines = [json.loads(line) for line in Recording.path.read_text().splitlines()]
    decided = [what for kind, what, *_ in lines if kind == "effect"]
    kinds = {text.split("(")[0].split(".")[-1] for text in decided}
    assert kinds >= {"Ask", "Dispatch", "Reserve", "WaitUntil"}
    assert sum("Dispatch(" in text for text in decided) > REQUESTS // 2
    again = list(replayed(lines))
    for effect, then in zip(again, decided, strict=True):
        assert str(effect) == then
    explained = [effect.decision for effect in again if isinstance(effect, effects.Dispatch)]
    assert len(explained) > REQUESTS // 2
    for decision in explained:
        assert decision is not None
        told = explain(make_policy("slo"), decision)
        scores = [(c.score, c.tie_break) for c in told.candidates if c.compared]
        tied = [c.instance_id for c in told.candidates if (c.score, c.tie_break) == min(scores)]
        assert tied[int(told.draw * len(tied))] == decision.chosen.instance_id


def replayed(lines: list[list[Any]]) -> Iterator[effects.Effect]:
    """What a fresh core wants done when it is told the events of a recording."""
    draws = iter([what for name, what, *_ in lines if name == "draw"])
    config = PlacementConfig(turn_deadline_s=0.02)
    core = PlacementCore(make_policy("slo"), config, lambda: next(draws))
    for kind, what, *more in lines:
        if kind not in ("draw", "effect"):
            event = TypeAdapter(getattr(events, kind)).validate_python(what)
            yield from core.step(event, more[0])
    assert next(draws, None) is None, "the recorded core drew more often"
