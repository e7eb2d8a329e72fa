"""How long does a request wait for the tagger, also when more come than its model can read?

Requests come at random instants, each with a prompt of its own and the default deadline.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]

from bench.processes import running_services
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import progress
from bench.stats import percentiles
from foretell import wire
from foretell.config import SchedulerSettings
from foretell.v1 import tagger_pb2, tagger_pb2_grpc
from tools.length.dataset import Example, read_examples

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="7 minutes",
    paths={
        "MODEL": "folder of a length model, e.g. services/tagger/shipped",
        "PROMPTS": "answered prompts, JSON lines",
    },
    packages=("foretell", "onnxruntime", "grpcio"),
)
RATES = (20.0, 50.0, 100.0, 200.0)
_PROMPTS = 4096
_SEED = 1
_WARM_UP = 64
DEADLINE_S = SchedulerSettings.model_fields["tagger_deadline_ms"].default / 1e3
_SOURCES = ("model", "history", "prior", "late")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call."""

    source: str
    """The tagger's word for it; "late" where no answer came within the deadline."""
    took_s: float
    timer_s: float
    """When a timer went off that was set with the call, to its deadline."""


@dataclass(frozen=True, slots=True)
class Round:
    """One rate, for some seconds."""

    answers: list[Answer]
    took_s: float
    cpu_s: float
    """CPU seconds of the tagger."""
    stolen_s: float
    """What the hypervisor gave to other machines meanwhile, while somebody here wanted it: seconds,
    summed over the cores."""

    @property
    def stolen_cores(self) -> float:
        return self.stolen_s / self.took_s


async def load_all(
    model: str, examples: list[Example], rates: list[float], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """Two rows per rate: all its rounds, and the one from which the hypervisor took least."""
    found: dict[float, list[Round]] = {rate: [] for rate in rates}
    with progress() as bar:
        for rate in bar.track(rates * rounds, description="loads"):
            found[rate].append(await _round(model, examples, rate, seconds))
    rows = []
    for rate, measured in found.items():
        quietest = min(measured, key=lambda each: each.stolen_cores)
        rows += [_row(rate, "all", measured), _row(rate, "least stolen", [quietest])]
    return rows


async def _round(model: str, examples: list[Example], rate: float, seconds: float) -> Round:
    """Load a tagger process of its own for some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_services(Path(folder)) as services:
            listen = f"--listen=unix:{folder}/tagger.sock"
            tagger = await services.start("tagger", "services.tagger", listen, f"--model={model}")
            async with grpc.aio.insecure_channel(tagger.facts["address"]) as channel:
                stub = tagger_pb2_grpc.TaggerStub(channel)
                await _warm(stub, examples)
                began, cpu_s, stolen_s = time.perf_counter(), tagger.cpu_s(), _stolen_s()
                answers = await _load(stub, examples, rate, seconds)
                return Round(
                    answers,
                    time.perf_counter() - began,
                    tagger.cpu_s() - cpu_s,
                    _stolen_s() - stolen_s,
                )


def _stolen_s() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


async def _warm(stub: tagger_pb2_grpc.TaggerStub, examples: list[Example]) -> None:
    for example in examples[:_WARM_UP]:
        await stub.Tag(_request(example, 0), timeout=10.0)


async def _load(
    stub: tagger_pb2_grpc.TaggerStub, examples: list[Example], rate: float, seconds: float
) -> list[Answer]:
    """Calls at the instants of a Poisson process, whatever the answers take."""
    rng, calls = Random(_SEED), []
    due_s = time.perf_counter()
    for number, example in enumerate(islice(cycle(examples), round(rate * seconds))):
        due_s += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        calls.append(asyncio.create_task(_call(stub, _request(example, number), DEADLINE_S)))
    return list(await asyncio.gather(*calls))


async def _call(
    stub: tagger_pb2_grpc.TaggerStub, request: tagger_pb2.TagRequest, deadline_s: float
) -> Answer:
    began = time.perf_counter()
    timer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(
        deadline_s, lambda: timer.set_result(time.perf_counter() - began)
    )
    try:
        source = (await stub.Tag(request, timeout=deadline_s)).source
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        source = "late"
    took_s = time.perf_counter() - began
    return Answer(source, took_s, await timer)


def _request(example: Example, number: int) -> tagger_pb2.TagRequest:
    request = tagger_pb2.TagRequest(request_id=str(number), model_name="served")
    wire.conversation_to_proto(example.conversation, request)
    return request


def _row(rate: float, title: str, rounds: list[Round]) -> dict[str, Any]:
    answers = [answer for each in rounds for answer in each.answers]
    sources = Counter(answer.source for answer in answers)
    took_s, cpu_s = sum(each.took_s for each in rounds), sum(each.cpu_s for each in rounds)
    return {
        "rate_per_s": rate,
        "rounds": title,
        "calls": len(answers),
        "share": {name: round(sources[name] / len(answers), 4) for name in _SOURCES},
        "ms": percentiles([answer.took_s for answer in answers]),
        "timer_ms": percentiles([answer.timer_s for answer in answers]),
        "cpu_cores": round(cpu_s / took_s, 2),
        "cpu_ms_per_call": round(1e3 * cpu_s / len(answers), 2),
        "stolen_cores": round(sum(each.stolen_s for each in rounds) / took_s, 3),
    }


def tables(page: Numbers) -> Blocks:
    """Two rows for each rate."""
    text = "\n".join(
        (
            made_by(page),
            "Every call has a prompt of its own, so that none is recalled, and a deadline of "
            f"{page['deadline_ms']:g} ms, behind which the scheduler goes on without. One tagger "
            "process, its model on one thread; client and tagger share the cores. Nothing is "
            "observed meanwhile, so what the model does not read the *prior* answers. *Late* calls "
            "got no answer within the deadline. They end there, as far as the caller gets the "
            "cores: *timer* is when a timer goes off in the caller that is set with each call, to "
            "its deadline. *Stolen* are the cores that the hypervisor kept from this machine while "
            f"it wanted them. Of {page['rounds']} rounds of {page['seconds']:g} s per rate the "
            "second row is the one in which that was least.\n",
            markdown_table(
                (
                    "calls/s",
                    "rounds",
                    "stolen",
                    *(f"by {name}" for name in _SOURCES),
                    "p10 ms",
                    "p50 ms",
                    "p90 ms",
                    "p99 ms",
                    "cores",
                    "CPU ms/call",
                    "timer p50 ms",
                    "timer p99 ms",
                ),
                [
                    (
                        f"{row['rate_per_s']:g}",
                        row["rounds"],
                        f"{row['stolen_cores']:.3f}",
                        *(f"{row['share'][name]:.1%}" for name in _SOURCES),
                        *(f"{row['ms'][key]:.1f}" for key in ("p10", "p50", "p90", "p99")),
                        row["cpu_cores"],
                        row["cpu_ms_per_call"],
                        *(f"{row['timer_ms'][key]:.1f}" for key in ("p50", "p99")),
                    )
                    for row in page["rows"]
                ],
            ),
        )
    )
    return {"tables": text}


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "Calls a second."
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help=help_text)
    help_text = "Time for each rate and round."
    parser.add_argument("--seconds", type=float, default=20.0, help=help_text)
    parser.add_argument("--rounds", type=int, default=5)


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
