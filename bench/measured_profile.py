"""Does a profile measured over HTTP foretell the steps that an engine then makes?

    python -m bench.measured_profile --python .venv-vllm/bin/python --model .models/tiny-llama

Starts a real vLLM engine with the plugin, measures it with `foretell profile measure`, sends it a
random load, and compares the profile with the durations that the plugin recorded of each step. For
scale: the same six coefficients fitted to those very steps, which is as good as a linear step time
can be on them. Writes bench/results/measured_profile.json.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import zmq
import zmq.asyncio
from rich.console import Console
from rich.table import Table

from cli.bench.machine import describe_machine, describe_run
from cli.measure import MeasureOptions, measure
from cli.measure.endpoint import Endpoint, connected
from foretell.latency.features import features
from foretell.latency.importers.linear_fit import relative_fit
from foretell.latency.linear import LinearStepTime
from foretell.model import Step
from foretell.settings import LauncherSettings
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto
from services.backend.children import Child
from services.backend.commands import Places, engine_command
from services.backend.folders import free_ports
from services.backend.probe import http_get

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "results" / "measured_profile.json"
ENGINE_ARGS = (
    "--enforce-eager --dtype float32 --max-model-len 2048 --distributed-executor-backend uni "
    "--num-gpu-blocks-override 200 --disable-uvicorn-access-log"
)
ENGINE_ENV = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
START_S = 300.0
SEED = 7


@asynccontextmanager
async def running_engine(args: argparse.Namespace) -> AsyncIterator[tuple[str, str]]:
    """A vLLM engine with the plugin: its URL, and where it publishes snapshots."""
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        folder = Path(name)
        settings = LauncherSettings(
            engine="vllm", model=args.model, python=args.python, engine_args=args.engine_args
        )
        places = Places.of(settings, folder, folder)
        port = free_ports(settings.host, 1)[0]
        command = engine_command(settings, places, port)
        env = {**ENGINE_ENV, "PYTHONPATH": str(ROOT)}
        child = await Child.spawn("engine", command.argv, places.engine_log, env | command.env)
        url = f"http://{settings.host}:{port}"
        try:
            async with asyncio.timeout(START_S):
                while not await _serves(url):
                    if child.exit_code is not None:
                        raise child.failure("ended")
                    await asyncio.sleep(0.5)
            yield url, places.snapshot_endpoint
        finally:
            await child.stop(10.0)


async def _serves(url: str) -> bool:
    with suppress(OSError):
        return (await http_get(f"{url}/health", 2.0))[0] == 200
    return False


class StepRecorder:
    """The completed steps that an engine tells of."""

    def __init__(self, endpoint: str) -> None:
        self.steps: list[Step] = []
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set_hwm(100_000)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)
        self._last = -1

    async def run(self) -> None:
        while True:
            message = snapshot_pb2.EngineSnapshot.FromString(await self._socket.recv())
            if message.sequence != self._last:  # no heartbeat
                self._last = message.sequence
                self.steps += snapshot_from_proto(message).completed_steps

    def close(self) -> None:
        self._context.destroy(linger=0)


async def load(endpoint: Endpoint, seconds: float, per_s: float) -> int:
    """Poisson arrivals of streams with log-normal lengths; how many there were."""
    rng = random.Random(SEED)
    streams: list[asyncio.Task[None]] = []
    end_s = time.monotonic() + seconds

    async def stream(prompt: Sequence[int], tokens: int) -> None:
        async for _ in endpoint.stream(prompt, tokens):
            pass

    while time.monotonic() < end_s:
        prompt = rng.choices(range(1000, 2000), k=min(1500, int(rng.lognormvariate(5.0, 1.0)) + 1))
        tokens = min(300, int(rng.lognormvariate(4.0, 0.7)) + 1)
        streams.append(asyncio.create_task(stream(prompt, tokens)))
        await asyncio.sleep(rng.expovariate(per_s))
    await asyncio.gather(*streams)
    return len(streams)


def compare(model: LinearStepTime, steps: Sequence[Step]) -> dict[str, Any]:
    """The model against recorded steps, and the best coefficients for them, by kind of step."""
    x = [features(step.shape) for step in steps]
    best = LinearStepTime(relative_fit(x, [step.duration_s for step in steps]))
    kinds = {
        "decode": [s for s in steps if not s.shape.prefill_seqs],
        "prefill": [s for s in steps if s.shape.prefill_seqs and not s.shape.decode_seqs],
        "mixed": [s for s in steps if s.shape.prefill_seqs and s.shape.decode_seqs],
        "all": list(steps),
    }
    return {
        kind: {
            "steps": len(chosen),
            "recorded_s": round(sum(s.duration_s for s in chosen), 2),
            "total_error": _total(model, chosen),
            "median_abs_error": _median(model, chosen),
            "best_total_error": _total(best, chosen),
            "best_median_abs_error": _median(best, chosen),
        }
        for kind, chosen in kinds.items()
        if chosen
    }


def _total(model: LinearStepTime, steps: Sequence[Step]) -> float:
    recorded_s = sum(s.duration_s for s in steps)
    return round(sum(model.step_s(s.shape) for s in steps) / recorded_s - 1.0, 4)


def _median(model: LinearStepTime, steps: Sequence[Step]) -> float:
    errors = [abs(model.step_s(s.shape) / s.duration_s - 1.0) for s in steps]
    return round(median(errors), 4)


def show(phases: dict[str, dict[str, Any]]) -> None:
    """A row per phase and kind of step."""
    head = ("steps of", "kind", "steps", "total error", "median |error|", "best total", "best |..|")
    table = Table(*head, title="The measured profile against recorded steps")
    for phase, kinds in phases.items():
        for kind, row in kinds.items():
            table.add_row(
                phase,
                kind,
                f"{row['steps']}",
                f"{row['total_error']:+.1%}",
                f"{row['median_abs_error']:.1%}",
                f"{row['best_total_error']:+.1%}",
                f"{row['best_median_abs_error']:.1%}",
            )
    Console().print(table)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, load, compare."""
    async with running_engine(args) as (url, snapshots):
        recorder = StepRecorder(snapshots)
        recording = asyncio.create_task(recorder.run())
        try:
            options = MeasureOptions(url, seconds=args.seconds, max_concurrency=args.concurrency)
            found = await measure(options)
            measured = len(recorder.steps)
            async with connected(url, "") as endpoint:
                await endpoint.facts("")
                streams = await load(endpoint, args.load_seconds, args.per_second)
            await asyncio.sleep(1.0)
        finally:
            recording.cancel()
            recorder.close()
    model = LinearStepTime(found.profile.coefficients_s)
    return {
        "profile": {
            "coefficients_s": found.profile.coefficients_s,
            "provenance": found.profile.provenance,
            "relative_residual": found.profile.relative_residual,
        },
        "load": {"streams": streams, "seconds": args.load_seconds, "per_second": args.per_second},
        "phases": {
            "the measurement": compare(model, recorder.steps[:measured]),
            "the load": compare(model, recorder.steps[measured:]),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="a Python that has vLLM")
    parser.add_argument("--model", required=True, help="model folder or name")
    parser.add_argument("--engine-args", default=ENGINE_ARGS)
    parser.add_argument("--seconds", type=float, default=90.0, help="of the measurement")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--load-seconds", type=float, default=60.0)
    parser.add_argument("--per-second", type=float, default=4.0, help="streams that arrive")
    args = parser.parse_args()
    machine = describe_machine("numpy", "httpx")
    result = asyncio.run(run(args))
    show(result["phases"])
    facts = {"machine": machine, **describe_run("bench.measured_profile")}
    RESULT.write_text(json.dumps(facts | result, indent=2) + "\n")


if __name__ == "__main__":
    main()
