"""How long does a request wait for the tagger, also when more come than its model can read?

    python -m bench.tagger_load MODEL PROMPTS [--rates 20 50 100 200] [--seconds 20]

MODEL is a folder of `foretell train-tagger`, PROMPTS a file of answered prompts. Requests come at
random instants, each with a prompt of its own and the scheduler's default deadline. Writes
bench/results/tagger_load.json and tagger_load.md.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import grpc
from rich.console import Console
from rich.progress import Progress

from bench.processes import running_services
from bench.stats import markdown_table, percentiles
from cli.bench.machine import describe_machine, describe_run, machine_line
from cli.length.dataset import Example, read_examples
from foretell import wire
from foretell.settings import SchedulerSettings
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

RESULTS = Path(__file__).resolve().parent / "results"
RATES = (20.0, 50.0, 100.0, 200.0)
_PROMPTS = 4096
_SEED = 1
_WARM_UP = 64
_SOURCES = ("model", "history", "prior", "late")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one call."""

    source: str
    """As the tagger says; "late" where no answer came within the deadline."""
    took_s: float
    timer_s: float
    """When a timer went off that was set with the call, to its deadline."""


async def measure(
    model: str, examples: list[Example], rates: list[float], seconds: float
) -> list[dict[str, Any]]:
    """One row per rate, a tagger process for each."""
    deadline_s = SchedulerSettings.model_fields["tagger_deadline_ms"].default / 1000
    rows = []
    total = round(sum(rates) * seconds)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("calls", total=total)
        for rate in rates:
            with tempfile.TemporaryDirectory() as folder:
                async with running_services(Path(folder)) as services:
                    listen = f"--listen=unix:{folder}/tagger.sock"
                    tagger = await services.start(
                        "tagger", "services.tagger", listen, f"--model={model}", "--recalled=1"
                    )
                    async with grpc.aio.insecure_channel(tagger.facts["address"]) as channel:
                        stub = tagger_pb2_grpc.TaggerStub(channel)
                        await _warm(stub, examples)
                        began, cpu_s = time.perf_counter(), tagger.cpu_s()
                        answers = await _load(
                            stub,
                            examples,
                            rate,
                            seconds,
                            deadline_s,
                            lambda: progress.advance(task),
                        )
                        took_s = time.perf_counter() - began
                        cpu_s = tagger.cpu_s() - cpu_s
            rows.append(_row(rate, answers, took_s, cpu_s))
    return rows


async def _warm(stub: tagger_pb2_grpc.TaggerStub, examples: list[Example]) -> None:
    for example in examples[:_WARM_UP]:
        await stub.Tag(_request(example, 0), timeout=10.0)


async def _load(
    stub: tagger_pb2_grpc.TaggerStub,
    examples: list[Example],
    rate: float,
    seconds: float,
    deadline_s: float,
    tick: Any,
) -> list[Answer]:
    """Calls at the instants of a Poisson process, whatever the answers take."""
    rng, calls = Random(_SEED), []
    due_s = time.perf_counter()
    for number, example in enumerate(islice(cycle(examples), round(rate * seconds))):
        due_s += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        calls.append(asyncio.create_task(_call(stub, _request(example, number), deadline_s)))
        tick()
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


def _row(rate: float, answers: list[Answer], took_s: float, cpu_s: float) -> dict[str, Any]:
    sources = Counter(answer.source for answer in answers)
    return {
        "rate_per_s": rate,
        "calls": len(answers),
        "share": {name: round(sources[name] / len(answers), 4) for name in _SOURCES},
        "ms": percentiles([answer.took_s for answer in answers]),
        "timer_ms": percentiles([answer.timer_s for answer in answers]),
        "cpu_cores": round(cpu_s / took_s, 2),
        "cpu_ms_per_call": round(1e3 * cpu_s / len(answers), 2),
    }


def write_report(page: dict[str, Any]) -> str:
    """Write the JSON and the Markdown; returns the latter."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "tagger_load.json").write_text(json.dumps(page, indent=1) + "\n")
    text = "\n".join(
        (
            "# Waiting for the tagger\n",
            f"Made by `{page['command']}` on {page['date']}; {machine_line(page['machine'])}.\n",
            "Every call has a prompt of its own, so that none is recalled, and a deadline of "
            f"{page['deadline_ms']:g} ms, behind which the scheduler goes on without. One tagger "
            "process, its model on one thread; client and tagger share the cores. *Late* calls got "
            "no answer within the deadline. They end there, as far as the caller gets the cores: "
            "*timer* is when a timer goes off in the caller that is set with each call, to its "
            "deadline.\n",
            markdown_table(
                (
                    "calls/s",
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
    (RESULTS / "tagger_load.md").write_text(text)
    return text


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a length model")
    parser.add_argument("prompts", type=Path, help="answered prompts, JSON lines")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="calls/s")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each rate")
    options = parser.parse_args()
    machine = describe_machine("foretell", "onnxruntime", "grpcio")
    examples = read_examples(options.prompts)
    Random(_SEED).shuffle(examples)
    rows = asyncio.run(measure(options.model, examples[:_PROMPTS], options.rates, options.seconds))
    deadline_ms = SchedulerSettings.model_fields["tagger_deadline_ms"].default
    facts = {"machine": machine, "deadline_ms": deadline_ms, "rows": rows}
    made = describe_run("bench.tagger_load")
    made["command"] = made["command"].replace(str(options.prompts), "PROMPTS")
    print(write_report({**made, **facts}))


if __name__ == "__main__":
    main()
