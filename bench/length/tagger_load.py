"""What does an estimate cost, who makes it and how long does it take, also under load?

Requests come at random instants over one stream, each with a prompt of its own, and their answers
are told to the tagger afterwards, as a scheduler does.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench.processes import Service, running_services
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import progress
from bench.stats import percentiles
from foretell import wire
from foretell.config import SchedulerSettings
from foretell.v1 import tagger_pb2, tagger_pb2_grpc
from services.scheduler.placing.peers import NoAnswer, open_channel
from services.scheduler.placing.tagging import TaggerClient
from tools.length.dataset import Example, read_examples

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="6 minutes",
    paths={
        "MODEL": "folder of a length model, e.g. services/tagger/shipped",
        "PROMPTS": "answered prompts, JSON lines",
    },
    packages=("foretell", "onnxruntime", "grpcio"),
)
RATES = (20.0, 50.0, 100.0, 200.0, 400.0)
_PROMPTS = 4096
_SEED = 1
_WARM_UP = 64
_OBSERVE_EVERY_S = 0.2
DEADLINE_S = SchedulerSettings.model_fields["tagger_deadline_ms"].default / 1e3
_SOURCES = ("model", "small_model", "history", "prior", "late")
_SPIN = "while True: pass"


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds."""

    tagger: float
    encoder: float
    """CPU of the encoder's process, which runs when nobody else does."""
    client: float

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(
            self.tagger - other.tagger, self.encoder - other.encoder, self.client - other.client
        )


@dataclass(frozen=True, slots=True)
class Round:
    """One rate, for some seconds."""

    sources: Counter[str]
    took_s: list[float]
    """Seconds to each estimate; to late ones until they were given up."""
    seconds: float
    cpu: Cpu


async def load_all(
    model: str, examples: list[Example], rates: list[float], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """One row for each rate on cores that are free, and one on cores that others want."""
    found: dict[tuple[bool, float], list[Round]] = {}
    with progress() as bar:
        turns = [(busy, rate) for busy in (False, True) for rate in rates] * rounds
        for busy, rate in bar.track(turns, description="loads"):
            with _others(busy):
                measured = await _round(model, examples, rate, seconds)
            found.setdefault((busy, rate), []).append(measured)
    return [_row(busy, rate, measured) for (busy, rate), measured in found.items()]


@contextmanager
def _others(busy: bool) -> Iterator[None]:
    """Others that want all cores, with the same priority as everybody."""
    count = (os.cpu_count() or 1) if busy else 0
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


async def _round(model: str, examples: list[Example], rate: float, seconds: float) -> Round:
    """Load a tagger process of its own for some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_services(Path(folder)) as services:
            listen = f"--listen=unix:{folder}/tagger.sock"
            tagger = await services.start("tagger", "services.tagger", listen, f"--model={model}")
            async with open_channel(tagger.facts["address"]) as channel:
                stub = tagger_pb2_grpc.TaggerStub(channel)
                client = TaggerClient(tagger.facts["address"], DEADLINE_S)
                try:
                    load = _Load(stub, client)
                    await load.run(examples[:_WARM_UP], rate)
                    load.forget()
                    own_s = await _idle_driver_s(examples, rate)
                    began, cpu = time.perf_counter(), _cpu(tagger)
                    given = islice(cycle(examples), _WARM_UP, _WARM_UP + round(rate * seconds))
                    await load.run(list(given), rate)
                    spent = _cpu(tagger) - cpu
                    spent = Cpu(
                        spent.tagger, spent.encoder, spent.client - own_s * len(load.took_s)
                    )
                    return Round(load.sources, load.took_s, time.perf_counter() - began, spent)
                finally:
                    await client.close()


def _cpu(tagger: Service) -> Cpu:
    def of(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    encoder = sum(of(child) for child in tagger.process.children())
    return Cpu(tagger.cpu_s(), encoder, time.process_time())


class _Load:
    """Asks at the instants of a Poisson process, whatever the answers take, and teaches."""

    def __init__(self, stub: tagger_pb2_grpc.TaggerStub, client: TaggerClient) -> None:
        self._stub = stub
        self._client = client
        self._lessons: list[tagger_pb2.Observation] = []
        self.forget()

    def forget(self) -> None:
        self.sources: Counter[str] = Counter()
        self.took_s: list[float] = []

    async def run(self, examples: list[Example], rate: float) -> None:
        teaching = asyncio.create_task(self._teach())
        asking: list[asyncio.Task[None]] = []
        try:
            async for number in _instants(len(examples), rate):
                asking.append(asyncio.create_task(self._ask(examples[number], number)))
            await asyncio.gather(*asking)
        finally:
            teaching.cancel()
            await asyncio.wait({teaching})

    async def _ask(self, example: Example, number: int) -> None:
        request = tagger_pb2.TagRequest(request_id=str(number), model_name="served")
        wire.conversation_to_proto(example.conversation, request)
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(DEADLINE_S):
                estimate = await self._client.estimate(request)
            source = estimate.source if estimate else "late"
        except (NoAnswer, TimeoutError):
            source = "late"
        self.took_s.append(time.perf_counter() - began_s)
        self.sources[source] += 1
        self._lessons.append(
            tagger_pb2.Observation(
                model_name="served",
                prompt_tokens=example.conversation.prompt_tokens,
                output_tokens=example.output_tokens,
                censored=example.censored,
                request_id=str(number),
            )
        )

    async def _teach(self) -> None:
        while True:
            await asyncio.sleep(_OBSERVE_EVERY_S)
            lessons, self._lessons = self._lessons, []
            await self._stub.Observe(tagger_pb2.ObserveRequest(observations=lessons))


async def _instants(count: int, rate: float) -> AsyncIterator[int]:
    rng, due_s = Random(_SEED), time.perf_counter()
    for number in range(count):
        due_s += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        yield number


async def _idle_driver_s(examples: list[Example], rate: float) -> float:
    """CPU seconds per request of what is the benchmark's own in this process: its clock."""
    count, began_s = round(rate), time.process_time()
    async for _ in _instants(count, rate):
        pass
    return (time.process_time() - began_s) / count


def _row(busy: bool, rate: float, rounds: list[Round]) -> dict[str, Any]:
    sources = sum((each.sources for each in rounds), Counter[str]())
    count, seconds = sources.total(), sum(each.seconds for each in rounds)
    return {
        "cores": "busy" if busy else "free",
        "rate_per_s": rate,
        "calls": count,
        "share": {name: round(sources[name] / count, 4) for name in _SOURCES},
        "ms": percentiles([took_s for each in rounds for took_s in each.took_s]),
        "tagger_cpu_ms": round(1e3 * sum(each.cpu.tagger for each in rounds) / count, 3),
        "client_cpu_ms": round(1e3 * sum(each.cpu.client for each in rounds) / count, 3),
        "encoder_cpu_ms": round(1e3 * sum(each.cpu.encoder for each in rounds) / count, 3),
        "encoder_cores": round(sum(each.cpu.encoder for each in rounds) / seconds, 3),
    }


def tables(page: Numbers) -> Blocks:
    """A row for each rate, on free cores and on busy ones."""
    text = "\n".join(
        (
            made_by(page),
            "Laboratory: one tagger, one client, no scheduler. Every request has a prompt of its "
            "own, so that none is recalled, and is *late* after "
            f"{page['deadline_ms']:g} ms, when a scheduler goes on without. Cores are *free* but "
            "for the client and whatever else the machine did, or *busy*: one more process a core "
            "spins. CPU is per request: of the tagger (all it does but for the encoder; what it "
            "learns from answers included), of the client (gathering, sending, receiving; what "
            "the benchmark itself needs to come at random instants is subtracted), and of the "
            "encoder's process, which runs at idle priority. "
            f"{page['rounds']} rounds of {page['seconds']:g} s per row.\n",
            markdown_table(
                (
                    *("cores", "requests/s", *(f"by {name}" for name in _SOURCES)),
                    *("p50 ms", "p90 ms", "p99 ms"),
                    *("tagger CPU ms", "client CPU ms", "encoder CPU ms", "encoder cores"),
                ),
                [
                    (
                        row["cores"],
                        f"{row['rate_per_s']:g}",
                        *(f"{row['share'][name]:.1%}" for name in _SOURCES),
                        *(f"{row['ms'][key]:.1f}" for key in ("p50", "p90", "p99")),
                        *(
                            f"{row[name]:.2f}"
                            for name in ("tagger_cpu_ms", "client_cpu_ms", "encoder_cpu_ms")
                        ),
                        f"{row['encoder_cores']:.2f}",
                    )
                    for row in page["rows"]
                ],
            ),
        )
    )
    return {"tables": text}


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "Requests a second."
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help=help_text)
    help_text = "Time for each rate and round."
    parser.add_argument("--seconds", type=float, default=10.0, help=help_text)
    parser.add_argument("--rounds", type=int, default=3)


def measure(options: argparse.Namespace) -> Numbers:
    """Load the tagger at every rate, in turns."""
    examples = read_examples(options.prompts)
    Random(_SEED).shuffle(examples)
    given = (options.rates, options.seconds, options.rounds)
    return {
        "deadline_ms": DEADLINE_S * 1e3,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "rows": asyncio.run(load_all(str(options.model), examples[:_PROMPTS], *given)),
    }


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
