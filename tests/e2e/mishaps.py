"""Failures in a cluster under load, and what clients may notice of them."""

import asyncio
from contextlib import suppress
from typing import Any

import httpx
import load
from cluster import Cluster, until
from prometheus_client.parser import text_string_to_metric_families

REQUESTS = 80
RECOVERY_S = 30.0


def model_of(running: Cluster) -> str:
    answer = httpx.get(f"{running.endpoint}/v1/models").raise_for_status()
    return str(answer.json()["data"][0]["id"])


def truth(running: Cluster, fates: list[load.Fate]) -> list[str]:
    """An engine's direct answers; the text of an emulated engine depends on the prompt alone."""
    url = running.component("engine-3")["address"]
    bodies = [{"prompt": f.prompt, "max_tokens": f.max_tokens, "temperature": 0} for f in fates]
    model = model_of(running)

    async def ask() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            answers = await asyncio.gather(
                *(client.post(f"{url}/v1/completions", json={"model": model} | b) for b in bodies)
            )
        return [answer.json()["choices"][0]["text"] for answer in answers]

    return asyncio.run(ask())


_asked: set[asyncio.Task[None]] = set()
"""Requests whose answers are ignored; the event loop itself holds only weak references to tasks."""


async def ask(url: str, body: dict[str, Any]) -> None:
    """Send one request with its own client, which is also closed if the loop ends."""
    async with httpx.AsyncClient(timeout=60) as client:
        with suppress(httpx.HTTPError):
            await client.post(url, json=body)


async def busy(running: Cluster, victim: str) -> None:
    """Wait until requests depend on `victim`: killing an idle process would prove nothing."""
    schedulers = [running.component(f"scheduler-{i}") for i in range(2)]

    async def depends(client: httpx.AsyncClient) -> bool:
        for scheduler in schedulers:
            status = (await client.get(f"{scheduler['address']}/status")).json()
            if victim in (scheduler["name"], "tagger") and status["in_progress"]:
                return True
            outstanding = {i["instance_id"]: i["outstanding"] for i in status["instances"]}
            if outstanding.get(victim.removesuffix(".predictor")):
                return True
        return False

    # On a busy machine the load may be over before this looks, so send some more.
    body = {"model": model_of(running), "prompt": "more", "max_tokens": 120, "temperature": 0}
    async with httpx.AsyncClient(timeout=RECOVERY_S) as client:
        for number in range(600):
            if await depends(client):
                return
            if number % 10 == 9:
                said = body | {"prompt": f"more {number}"}
                task = asyncio.create_task(ask(f"{running.endpoint}/v1/completions", said))
                _asked.add(task)
                task.add_done_callback(_asked.discard)
            await asyncio.sleep(0.01)
    raise AssertionError(f"no request ever depended on {victim}")


async def until_unbelieved(running: Cluster, predictor: str) -> None:
    """Wait until no scheduler uses the last snapshot of a stopped predictor any more."""
    urls = [running.component(f"scheduler-{i}")["address"] for i in range(2)]
    instance_id = predictor.removesuffix(".predictor")
    async with httpx.AsyncClient() as client, asyncio.timeout(RECOVERY_S):
        while True:
            answers = [(await client.get(f"{url}/status")).json() for url in urls]
            shown = [each for answer in answers for each in answer["instances"]]
            if all(s["running"] is None for s in shown if s["instance_id"] == instance_id):
                return
            await asyncio.sleep(0.05)


def drive(
    running: Cluster, victim: str, seed: int, *, retries: int = 2, with_headers: bool = False
) -> list[load.Fate]:
    """Load the cluster, kill `victim` meanwhile, and wait until all components are ready again.

    `with_headers`: an answer counts as begun with the engine's headers, not with its first token.
    """
    before = running.component(victim)

    async def mishap() -> None:
        await busy(running, victim)
        running.kill(victim)

    fates = asyncio.run(
        load.run(
            running.endpoint,
            model_of(running),
            REQUESTS,
            seed=seed,
            mishap=mishap,
            retries=retries,
        )
    )
    lost = [fate for fate in fates if fate.lost and not (with_headers and fate.begun)]
    assert not lost, f"{lost}\n{running.logs()}"
    whole = [fate for fate in fates if not fate.error]
    running.await_restart(victim, before)
    assert [fate.text for fate in whole] == truth(running, whole)
    return fates


def degraded(running: Cluster, missing: str) -> float:
    """The number of placements, of both schedulers, that lacked the component `missing`."""
    total = 0.0
    for name in ("scheduler-0", "scheduler-1"):
        text = httpx.get(f"{running.component(name)['address']}/metrics").text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                counts = sample.name == "foretell_degraded_total"
                total += sample.value * (counts and sample.labels["missing"] == missing)
    return total


def await_predictions(running: Cluster) -> None:
    """Wait until requests are placed by predictions for every instance again."""

    def nothing_is_missing() -> bool:
        before = degraded(running, "predictor")
        fates = asyncio.run(load.run(running.endpoint, model_of(running), 8, seed=9, over_s=0.2))
        assert not [fate.error for fate in fates if fate.error]
        return degraded(running, "predictor") == before

    until(nothing_is_missing, RECOVERY_S)
