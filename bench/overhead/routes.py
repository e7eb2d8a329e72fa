"""The ways that a request can take to the same emulated engine, all up at the same time."""

import asyncio
import json
import time
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.processes import Service, Services, start_emulated, start_predictor
from foretell.config import setting_of

FAN_OUTS = (1, 2, 4)
"""Engines, so predictors asked per placement, behind the predicting schedulers."""
PROFILE = "A30/Llama-2-7b-hf"
SPEEDUP = 1e6  # a step is no longer than the engine process needs to make and send its tokens
# Schedulers that are not being measured must not disturb the one that is.
HEALTH_INTERVAL_S = 10.0
_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Route:
    """One way to an engine."""

    key: str
    title: str
    url: str
    scheduler: Service | None = None
    predictors: tuple[Service, ...] = ()
    tagger: Service | None = None


@dataclass(frozen=True, slots=True)
class Testbed:
    """All routes, `direct` first, and the engines behind them."""

    routes: tuple[Route, ...]
    engines: tuple[Service, ...]
    model: str


async def start_testbed(services: Services) -> Testbed:
    """Engines, their predictors, one tagger, and one scheduler per route; all ready to serve."""
    count = max(FAN_OUTS)
    started = await asyncio.gather(
        *(
            start_emulated(
                services,
                index,
                PROFILE,
                f"--speedup={SPEEDUP:g}",
                "--noise-ratio=0",
                start_timeout_s=_READY_TIMEOUT_S,
            )
            for index in range(count)
        ),
        *(
            start_predictor(
                services, index, PROFILE, "--metrics-port=0", start_timeout_s=_READY_TIMEOUT_S
            )
            for index in range(count)
        ),
        services.start(
            "tagger",
            "services.tagger",
            f"--listen=unix:{services.folder}/tagger.sock",
            "--model=none",  # what reading takes is measured by `tagger_load`
        ),
    )
    engines, predictors, tagger = started[:count], started[count:-1], started[-1]
    plain, *predicting = await asyncio.gather(
        _start_scheduler(services, "round-robin", engines[:1], (), None),
        *(
            _start_scheduler(services, f"predicted-{n}", engines[:n], predictors[:n], tagger)
            for n in FAN_OUTS
        ),
    )
    routes = [
        Route("direct", "engine alone", engines[0].facts["url"]),
        Route("round_robin", "scheduler, round_robin, 1 engine", plain.facts["url"], plain),
    ]
    for n, scheduler in zip(FAN_OUTS, predicting, strict=True):
        title = f"scheduler, predicted_latency, {n} engine{'s' if n > 1 else ''}"
        url = scheduler.facts["url"]
        routes.append(Route(f"predicted_{n}", title, url, scheduler, tuple(predictors[:n]), tagger))
    await asyncio.gather(*(_until_ready(route.url) for route in routes[1:]))
    return Testbed(tuple(routes), tuple(engines), engines[0].facts["model_name"])


async def _start_scheduler(
    services: Services,
    name: str,
    engines: list[Service],
    predictors: list[Service] | tuple[()],
    tagger: Service | None,
) -> Service:
    instances = [{"instance_id": engine.name, "url": engine.facts["url"]} for engine in engines]
    for instance, predictor in zip(instances, predictors, strict=False):
        instance["predictor"] = predictor.facts["address"]
    return await services.start(
        name,
        "services.scheduler",
        f"--instances={json.dumps(instances)}",
        f"--policy={setting_of('predicted_latency' if predictors else 'round_robin')}",
        f"--tagger={tagger.facts['address'] if tagger else ''}",
        f"--health-interval-s={HEALTH_INTERVAL_S:g}",
        "--log-level=warning",
    )


async def _until_ready(url: str) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    async with httpx.AsyncClient(trust_env=False) as client:
        while (await client.get(f"{url}/ready")).status_code != 200:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} found no engine within {_READY_TIMEOUT_S:g} s")
            await asyncio.sleep(0.05)


async def read_metrics(client: httpx.AsyncClient, route: Route) -> dict[str, float]:
    """Sums, counts and counters of a route's scheduler and predictors, added up over labels.

    Only `foretell_degraded_total` is told apart by its label: entries `degraded/MISSING`.
    """
    urls = [route.url] if route.scheduler else []
    urls += [f"http://127.0.0.1:{p.facts['metrics_port']}" for p in route.predictors]
    samples: dict[str, float] = {}
    for url in urls:
        page = await client.get(f"{url}/metrics")
        for family in text_string_to_metric_families(page.raise_for_status().text):
            for sample in family.samples:
                name = sample.name
                if name == "foretell_degraded_total":
                    name = f"degraded/{sample.labels['missing']}"
                if not name.endswith("_bucket"):
                    samples[name] = samples.get(name, 0.0) + sample.value
    return samples
