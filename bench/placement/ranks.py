"""Is placing requests on data-parallel ranks better than vLLM's own balancer?

One real vLLM server on the CPU with two ranks of a dense model, whose steps last as long as a GPU
profile says. Half of the runs go to Foretell's endpoint, which names the rank of each request; the
others go directly to the server, which balances by running and waiting requests. They take turns on
the same arrivals, in another order each round.
"""

import argparse
import asyncio
import json
import shlex
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from bench.paced.engines import MODEL_NAME, EngineSpec, engine_args
from bench.paced.pace import PROFILE, step_time
from bench.paced.settings import requests_per_s
from bench.report import ROOT, Benchmark, Blocks, Numbers, made_by
from foretell.tools.check.engine_args import CPU_ENVIRONMENT
from foretell.tools.check.load import online, send
from foretell.tools.intervals import percentile, ratio_interval
from foretell.tools.live.stream import StreamClient
from foretell.tools.markdown import markdown_table
from foretell.workload import Arrival, poisson
from tests.e2e.cluster import cluster

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="12 minutes",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    packages=("foretell", "grpcio"),
)
RANKS, SEATS = 2, 4
SPEC = EngineSpec(seats=SEATS)
PROMPT_TOKENS, MOST_TOKENS = (40, 200), 512
UTILISATION = 0.95
_WARM_UP = 15
"""The first requests of each run, which do not count."""
_START_S = 400.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The requests of a setting."""

    what: str
    outputs: tuple[int, ...]
    """Lengths of answers in tokens, all equally likely."""
    stated: bool = False
    """Whether `max_tokens` states the length."""

    def rate_per_s(self) -> float:
        """Requests a second that full ranks could serve, times `UTILISATION`."""
        means = fmean(PROMPT_TOKENS), fmean(self.outputs)
        return UTILISATION * RANKS * requests_per_s(SPEC, *means, step_time())


SETTINGS = {
    "alike": Setting("answers of 32 tokens", (32,)),
    "unlike": Setting("of 8 or 104, which nobody knows before", (8, 8, 8, 104)),
    "stated": Setting("of 8 or 104, which `max_tokens` says", (8, 8, 8, 104), stated=True),
}
ARMS = ("foretell", "vllm")
Found = dict[str, dict[str, list[list[float]]]]
"""TTFTs in seconds, by setting, arm and round."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="Each with a seed of its own.")
    parser.add_argument("--requests", type=int, default=75, help="Requests that count, of a run.")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--model", type=Path, default=ROOT / ".models/tiny-llama")


def measure(options: argparse.Namespace) -> Numbers:
    """Make all runs."""
    if options.quick:
        options.rounds, options.requests = 1, 10
    found: Found = {name: {arm: [] for arm in ARMS} for name in SETTINGS}
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        cluster(
            Path(folder),
            f"--cluster={_cluster_file(Path(folder), options)}",
            "--no-restart",
            start_s=_START_S,
            **CPU_ENVIRONMENT,
            PYTHONPATH=str(ROOT),
        ) as running,
    ):
        server = httpx.get(f"{running.endpoint}/status").json()["instances"][0]["url"]
        urls = dict(zip(ARMS, (running.endpoint, str(server)), strict=True))
        asyncio.run(_runs(urls, options, found))
    return {"utilisation": UTILISATION, "ttft_s": found}


def _cluster_file(folder: Path, options: argparse.Namespace) -> Path:
    args = shlex.split(engine_args(SPEC))
    args[args.index("--stream-interval") + 1] = "1"
    engine = {
        "kind": "vllm",
        "ranks": RANKS,
        "python": str(options.python.absolute()),
        "profile": PROFILE,
        "args": shlex.join(args),
    }
    content = {
        "engines": [engine],
        "models": {MODEL_NAME: {"path": str(options.model.absolute())}},
        "schedulers": {"replicas": 1},
    }
    path = folder / "wanted.yaml"
    path.write_text(json.dumps(content))  # JSON is valid YAML
    return path


async def _runs(urls: dict[str, str], options: argparse.Namespace, found: Found) -> None:
    clients = {arm: StreamClient(url) for arm, url in urls.items()}
    async with clients[ARMS[0]], clients[ARMS[1]]:
        for arm in ARMS:  # load code and learn step times
            await _run(clients[arm], SETTINGS["unlike"], 30, arm)
        for number, (name, setting) in product(range(options.rounds), SETTINGS.items()):
            for arm in ARMS if number % 2 else ARMS[::-1]:
                asked = _WARM_UP + options.requests
                ttfts_s = await _run(clients[arm], setting, asked, f"{name} {number}")
                found[name][arm].append(ttfts_s[_WARM_UP:])
                mean_s = fmean(ttfts_s[_WARM_UP:])
                print(f"{name} {number} {arm}: TTFT {mean_s:.3f} s", flush=True)


async def _run(client: StreamClient, setting: Setting, requests: int, seed: str) -> list[float]:
    """The TTFTs in seconds of `requests` random arrivals, in their order."""
    draws = Random(seed)
    times_s = poisson(setting.rate_per_s(), draws)
    arrivals = [
        Arrival(at_s, draws.randint(*PROMPT_TOKENS), draws.choice(setting.outputs), f"{seed} {n}")
        for n, at_s in zip(range(requests), times_s, strict=False)
    ]
    hidden = online(MOST_TOKENS, MODEL_NAME, seed)

    def body(arrival: Arrival) -> dict[str, Any]:
        limit = {"max_tokens": arrival.output_tokens} if setting.stated else {}
        return hidden(arrival) | limit

    return [answer.ttft_s for answer in await send(client, arrivals, body)]


def tables(page: Numbers) -> Blocks:
    """A row for each setting: means over rounds, and ratios paired by round."""
    rows = []
    for name, found in page["ttft_s"].items():
        own, other = found["foretell"], found["vllm"]
        row = [f"{name}: {SETTINGS[name].what}"]
        for level in (None, 90):
            mine, theirs = (
                [percentile(each, level) if level else fmean(each) for each in arm]
                for arm in (own, other)
            )
            ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
            row += [f"{fmean(mine):.2f}", f"{fmean(theirs):.2f}"]
            if len(ratios) > 1:
                mean, low, high = ratio_interval(ratios)
                row.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
                row.append(f"{max(ratios):.2f}")
            else:
                row += [f"{ratios[0]:.2f}", ""]
        rows.append(row)
    header = ["setting"]
    for name in ("mean TTFT", "P90 TTFT"):
        header += [f"{name}, s", "vLLM's balancer, s", "ratio (95%)", "worst round"]
    rounds = len(next(iter(page["ttft_s"].values()))["vllm"])
    about = f"{rounds} rounds; the rate is {page['utilisation']:.0%} of what full ranks serve.\n"
    return {"tables": f"{made_by(page)}\n{about}\n{markdown_table(header, rows)}"}
