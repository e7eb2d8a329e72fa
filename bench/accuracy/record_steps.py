"""Records the steps of a real vLLM engine on the CPU under mixed load.

    python -m bench.accuracy.record_steps --python .venv-vllm/bin/python --model .models/tiny-llama

Not a benchmark, but the source of data for one. Starts an engine with the plugin, sends it
requests of known lengths for some minutes and writes what each step held and how long it took, as
the plugin published it, to bench/accuracy/data/vllm_cpu_steps.csv.gz. Rate, burstiness and lengths
change every half minute (`PHASES`, in rounds), so that prefill, decode, an idle and a full engine
all occur.
"""

import argparse
import asyncio
import csv
import gzip
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random

import httpx

from bench.report import machine_line
from bench.vllm_cpu import ENVIRONMENT, running_engine
from foretell.model import EngineSnapshot, Step
from foretell.tools.harness.machine import describe_machine
from foretell.tools.live.tap import decoded, listening
from foretell.workload import LogNormal, LogNormalLengths, gamma

OUTPUT = Path(__file__).resolve().parent / "data" / "vllm_cpu_steps.csv.gz"
FIELDS = (
    "started_us", "duration_us",
    "prefill_seqs", "prefill_tokens", "prefill_pairs", "decode_seqs", "decode_pairs",
)  # fmt: skip
MAX_MODEL_LEN = 2048
ENGINE_ARGS = (
    f"--enforce-eager --dtype float32 --max-model-len {MAX_MODEL_LEN} --max-num-seqs 48 "
    "--max-num-batched-tokens 1024 --distributed-executor-backend uni "
    "--num-gpu-blocks-override 400 --disable-uvicorn-access-log"
)
SEED = 20_240_607
ANSWER_S = 120.0
UNLIMITED = httpx.Limits(max_connections=None)
PHASE_S = 30.0
_FIRST_TOKEN_ID, _TOKEN_IDS = 3, 4000  # behind the tiny model's special tokens


@dataclass(frozen=True, slots=True)
class Phase:
    """A kind of traffic: requests a second, how bursty, and mean lengths in tokens."""

    rate_per_s: float
    cv: float
    prompt_tokens: float
    output_tokens: float


PHASES = (
    Phase(2.0, 1.0, 150, 60),
    Phase(6.0, 1.0, 150, 60),
    Phase(3.0, 3.0, 500, 40),
    Phase(1.5, 2.0, 100, 250),
    Phase(10.0, 2.0, 60, 40),
    Phase(0.5, 1.0, 900, 100),
)


def steps_of(snapshots: Iterable[EngineSnapshot]) -> list[Step]:
    """The steps that these snapshots tell of, in their order."""
    return [step for snapshot in snapshots for step in snapshot.completed_steps]


async def send_load(url: str, seconds: float) -> int:
    """Send the phases in turn, until `seconds` have passed; returns the requests answered."""
    rng, loop = Random(SEED), asyncio.get_running_loop()
    started = loop.time()
    sent = 0
    async with (
        httpx.AsyncClient(timeout=ANSWER_S, limits=UNLIMITED) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for index in range(round(seconds / PHASE_S)):
            begin = started + index * PHASE_S
            for at, prompt, output in phase_requests(PHASES[index % len(PHASES)], rng):
                await asyncio.sleep(begin + at - loop.time())
                tasks.create_task(ask(client, url, prompt, output))
                sent += 1
            print(f"{index * PHASE_S:.0f} s: {sent} requests", flush=True)
    return sent


def phase_requests(phase: Phase, rng: Random) -> list[tuple[float, list[int], int]]:
    """Arrival (s), prompt (token ids, drawn anew: no prefix is cached) and output tokens."""
    half = MAX_MODEL_LEN // 2
    lengths = LogNormalLengths(
        LogNormal(phase.prompt_tokens, 1.0, half), LogNormal(phase.output_tokens, 1.0, half - 1)
    )
    found = []
    times = islice(gamma(phase.rate_per_s, phase.cv, rng), round(phase.rate_per_s * PHASE_S))
    for at in times:
        prompt, output = lengths.sample(rng)
        ids = [_FIRST_TOKEN_ID + rng.randrange(_TOKEN_IDS) for _ in range(prompt)]
        if at < PHASE_S:
            found.append((at, ids, output))
    return found


async def ask(client: httpx.AsyncClient, url: str, prompt: list[int], output: int) -> None:
    body = {"model": "m", "prompt": prompt, "max_tokens": output, "ignore_eos": True}
    response = await client.post(f"{url}/v1/completions", json=body)
    response.raise_for_status()


def write(path: Path, steps: list[Step], about: dict[str, object]) -> None:
    """A line of JSON that says what this is, then CSV; times in whole microseconds."""
    first = steps[0].started_unix_s
    text = io.StringIO()
    text.write(f"# {json.dumps(about)}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for step in steps:
        s = step.shape
        writer.writerow(
            (
                round((step.started_unix_s - first) * 1e6), round(step.duration_s * 1e6),
                s.prefill_seqs, s.prefill_tokens, s.prefill_pairs, s.decode_seqs, s.decode_pairs,
            )
        )  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


async def record(python: str, model: str, seconds: float) -> tuple[list[Step], str, int]:
    """The steps in their order, the engine's version, and how many requests were sent."""
    async with running_engine(python, model, ENGINE_ARGS) as engine:
        with listening(engine.snapshots) as heard:
            sent = await send_load(engine.url, seconds)
            snapshots = decoded(heard())
    return steps_of(snapshots), snapshots[-1].config.engine_version, sent


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="Python that has vLLM")
    parser.add_argument("--model", required=True, help="folder of the tiny model")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    machine = describe_machine("foretell")
    steps, version, sent = asyncio.run(record(arguments.python, arguments.model, arguments.seconds))
    about = {
        "what": f"Steps of {version} for CPU serving a random Llama of 5M parameters",
        "made_by": "python -m bench.accuracy.record_steps",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "engine_args": ENGINE_ARGS,
        "environment": ENVIRONMENT,
        "seconds": arguments.seconds,
        "seed": SEED,
        "requests": sent,
        "steps_lost": steps[-1].step - steps[0].step + 1 - len(steps),
        "machine": machine_line(machine),
        "licence": "the project's own",
    }
    write(arguments.output, steps, about)
    print(f"{len(steps)} steps of {version}, {about['steps_lost']} lost: {arguments.output}")


if __name__ == "__main__":
    main()
