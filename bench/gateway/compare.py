"""What does Foretell cost in front of an engine, compared with other gateways?

All gateways run at the same time in front of the same fake engines, and take turns with the same
load from the same client. Engines and client are C programs of one file each, compiled when the
benchmark starts; each other gateway is installed from the registry into its own environment.
"""

import argparse
import asyncio
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.fake_engine import MODEL, compiled, start_fake_engines
from bench.gateway.gateways import BASE, GATEWAYS, PATH, Running, install, start
from bench.report import BUILD, Benchmark, Blocks, Numbers, made_by
from foretell.services.process.children import Child, ChildFailed
from foretell.tools.intervals import percentile
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    needs="gcc, and a package registry for the other gateways",
    packages=("foretell", "uvicorn", "uvloop", "httptools", "aiohttp"),
)
ENGINES = 4
TICK_MS = 20
_ENVIRONMENTS = BUILD / "gateway"


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are sent: `connections`, each with one request in flight."""

    key: str
    title: str
    connections: int
    requests: int
    chunks: int
    """Events of each answer; 0 if it is not streamed."""
    prompt_bytes: int
    token_ids: bool = False
    """Each event states the ids of its tokens, as `return_token_ids` asks vLLM to."""

    def body(self) -> bytes:
        prompt = ("the quick brown fox " * (self.prompt_bytes // 20 + 1))[: self.prompt_bytes]
        request: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.chunks or 1,
            "temperature": 0.7,
        }
        if self.chunks:
            request["stream"] = True
        if self.token_ids:
            request["return_token_ids"] = True
        return json.dumps(request).encode()


_STREAMS = Load("streams", "64 streams of 128 chunks", 64, 128, 128, 400)
_TOKEN_IDS = replace(_STREAMS, key="token_ids", title="the same with token ids", token_ids=True)
LOADS = (
    Load("short", "short requests, 32 in flight", 32, 12_000, 0, 400),
    _STREAMS,
    _TOKEN_IDS,
    Load("long", "prompts of 220 KB, 4 in flight", 4, 200, 0, 220_000),
)


@dataclass(slots=True)
class Round:
    """The measurements of one gateway in one round of one load."""

    first_ms: list[float] = field(default_factory=list)
    total_ms: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0


ByLoad = Mapping[str, Round]
"""One round, by the key of the load."""
Rounds = dict[tuple[str, str], list[Round]]
"""All rounds, by the keys of gateway and load."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    keys = [gateway.key for gateway in GATEWAYS]
    parser.add_argument("--rounds", type=int, default=5, help="Rounds of each load.")
    parser.add_argument("--only", nargs="*", choices=keys, default=keys, help="Gateways.")


def measure(options: argparse.Namespace) -> Numbers:
    """Build and install the programs, run all rounds and summarize them."""
    if options.quick:
        options.rounds, options.only = 1, ["ours-1"]
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), options.rounds, options.only))


async def _measure(folder: Path, rounds: int, keys: Sequence[str]) -> Numbers:
    client = compiled(Path(__file__).with_name("load.c"), folder)
    children: list[Child] = []
    running: list[Running] = []
    failed: dict[str, str] = {}
    try:
        urls = await start_fake_engines(ENGINES, TICK_MS, folder, children)
        for gateway in GATEWAYS:
            if gateway.key in keys:
                try:
                    bin_ = await asyncio.to_thread(install, gateway, _ENVIRONMENTS)
                    running.append(await start(gateway, bin_, urls, folder, children))
                except (ChildFailed, OSError, subprocess.CalledProcessError) as error:
                    failed[gateway.key] = str(error)
        found: Rounds = {}
        for number in range(rounds + 1):  # the first one warms up
            for load in LOADS:
                for each in list(running):
                    try:
                        seen = await asyncio.to_thread(_run, client, each, load)
                    except subprocess.CalledProcessError as error:
                        failed[each.gateway.key] = f"{load.title}: {error.stderr}"
                        running.remove(each)
                        continue
                    if number:
                        found.setdefault((each.gateway.key, load.key), []).append(seen)
        return {
            "setup": {"engines": ENGINES, "tick_ms": TICK_MS, "rounds": rounds},
            "gateways": {each.gateway.key: _summary(each, found) for each in running},
            "failed": failed,
        }
    finally:
        await asyncio.gather(*(child.stop(5.0) for child in children))


def _run(client: Path, gateway: Running, load: Load) -> Round:
    """Run one round; raises `subprocess.CalledProcessError` if an answer was wrong."""
    requests = max(load.connections, round(gateway.gateway.share * load.requests))
    numbers = (gateway.port, load.connections, requests, load.chunks)
    before_s = gateway.cpu_s()
    done = subprocess.run(
        [str(client), *map(str, numbers), PATH], input=load.body(), capture_output=True, check=True
    )
    cpu_s = gateway.cpu_s() - before_s
    wall, *lines = done.stdout.decode().splitlines()
    times = [line.split() for line in lines]
    first_ms, total_ms = ([float(pair[i]) / 1000 for pair in times] for i in (0, 1))
    return Round(first_ms, total_ms, float(wall), cpu_s)


def _summary(gateway: Running, found: Rounds) -> dict[str, Any]:
    """Medians over the rounds, and the medians of the ratios to `BASE` in the same rounds."""
    own, base = (_by_round(found, key) for key in (gateway.gateway.key, BASE))
    summary: dict[str, Any] = {"title": gateway.gateway.title}
    for name, of in _FIGURES.items():
        each, theirs = list(map(of, own)), list(map(of, base))
        summary[name] = round(median(each), 3)
        if theirs:
            ratios = [a / b for a, b in zip(each, theirs, strict=True) if b]
            summary[f"{name}_ratio"] = round(median(ratios), 2) if ratios else None
    summary["resident_mib"] = round(gateway.resident_mib())
    return summary


def _by_round(found: Rounds, gateway: str) -> list[ByLoad]:
    """The measurements of a gateway, round by round."""
    by_load = [found.get((gateway, load.key), []) for load in LOADS]
    keys = [load.key for load in LOADS]
    return [dict(zip(keys, each, strict=True)) for each in zip(*by_load, strict=True)]


def _cpu_per_request_ms(seen: Round) -> float:
    return 1e3 * seen.cpu_s / len(seen.total_ms)


def _cpu_per_chunk_us(seen: ByLoad, load: Load) -> float:
    """A stream costs a request and its chunks: the cost of a short request is subtracted."""
    requests = len(seen[load.key].total_ms)
    rest_s = seen[load.key].cpu_s - 1e-3 * _cpu_per_request_ms(seen["short"]) * requests
    return 1e6 * max(0.0, rest_s) / (requests * load.chunks)


_FIGURES: dict[str, Callable[[ByLoad], float]] = {
    "requests_per_s": lambda seen: len(seen["short"].total_ms) / seen["short"].wall_s,
    "p99_ms": lambda seen: percentile(seen["short"].total_ms, 99),
    "cpu_s_per_1000_requests": lambda seen: _cpu_per_request_ms(seen["short"]),
    "first_byte_p99_ms": lambda seen: percentile(seen["streams"].first_ms, 99),
    "cpu_s_per_million_chunks": lambda seen: _cpu_per_chunk_us(seen, _STREAMS),
    "cpu_s_per_million_token_ids": lambda seen: _cpu_per_chunk_us(seen, _TOKEN_IDS),
    "cpu_s_per_1000_long": lambda seen: _cpu_per_request_ms(seen["long"]),
}
_HEADER = (
    *("gateway", "requests/s", "p99 ms", "CPU ms a request", "first byte p99 ms"),
    *("CPU µs a chunk", "with token ids", "CPU ms with 220 KB", "MiB"),
)


def tables(result: Numbers) -> Blocks:
    """One table, each figure with its ratio to `BASE`."""
    rows = []
    for gateway in result["gateways"].values():
        cells = [gateway["title"]]
        for name in _FIGURES:
            ratio = gateway.get(f"{name}_ratio")
            cells.append(f"{gateway[name]:,.4g}" + (f" ({ratio:.2f})" if ratio else ""))
        rows.append([*cells, gateway["resident_mib"]])
    setup = result["setup"]
    failed = [f"Not measured: {key}: {why}\n" for key, why in result["failed"].items()]
    parts = [
        made_by(result),
        "; ".join(f"{load.title} ({load.requests:,} a round)" for load in LOADS)
        + f". {setup['engines']} fake engines; a stream gets a chunk every {setup['tick_ms']} ms. "
        f"Medians of {setup['rounds']} rounds, in brackets the ratio to {BASE} in the same "
        "rounds. Client, engines and gateways share the cores.\n",
        markdown_table(_HEADER, rows),
        *failed,
    ]
    return {"tables": "\n".join(parts)}
