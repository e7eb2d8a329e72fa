"""Does a profile measured over HTTP foretell the steps that an engine then makes?

    python -m bench.accuracy.measured_profile --python .venv-vllm/bin/python \\
        --model .models/tiny-llama

Starts a real vLLM engine with the plugin, measures it as `foretell profile measure` does, sends it
the mixed load of `bench.accuracy.record_steps`, and compares the profile with the durations that
the plugin recorded of each step. For scale: six coefficients fitted to those very steps, which is
as good as a linear step time can be on them. Writes bench/accuracy/results/measured_profile.json.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.accuracy.record_steps import ENGINE_ARGS, ENGINE_ENV, PHASE_S, engine, listen, send_load
from bench.accuracy.recorded_steps import TimedStep, fit
from foretell.latency.linear import LinearStepTime
from foretell.model import Step
from tools.harness.machine import describe_machine, describe_run
from tools.profiles.run import Measurement, MeasureOptions, measure

RESULT = Path(__file__).resolve().parent / "results" / "measured_profile.json"
IDLE_S = 2.0  # until the plugin has told of the last step


def compare(model: LinearStepTime, steps: Sequence[Step]) -> dict[str, Any]:
    """The model against recorded steps, and the best coefficients for them, by kind of step."""
    best = fit([TimedStep(s.started_unix_s, s.duration_s, s.shape) for s in steps])
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


async def run(args: argparse.Namespace) -> tuple[Measurement, dict[str, Any]]:
    """Measure, load, compare."""
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="foretell-measured-", dir="/tmp") as folder:
        async with engine(args.python, args.model, Path(folder)) as (url, places):
            listening = asyncio.create_task(listen(places.snapshot_endpoint, steps, set()))
            options = MeasureOptions(
                url,
                seconds=args.seconds,
                max_concurrency=48,
                max_num_seqs=48,
                max_num_batched_tokens=1024,
            )
            found = await measure(options)
            await asyncio.sleep(IDLE_S)
            measured = len(steps)
            await send_load(url, args.load_seconds)
            await asyncio.sleep(IDLE_S)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    model = LinearStepTime(found.profile.coefficients_s)
    return found, {
        "the measurement": compare(model, steps[:measured]),
        "the load": compare(model, steps[measured:]),
    }


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="Python that has vLLM")
    parser.add_argument("--model", required=True, help="folder of the tiny model")
    parser.add_argument("--seconds", type=float, default=90.0, help="of the measurement")
    parser.add_argument("--load-seconds", type=float, default=6 * PHASE_S)
    args = parser.parse_args()
    machine = describe_machine("numpy", "httpx")
    found, phases = asyncio.run(run(args))
    show(phases)
    machine["load_1min_after"] = round(os.getloadavg()[0], 2)
    document = {
        **describe_run("bench.accuracy.measured_profile"),
        "machine": machine,
        "engine_args": ENGINE_ARGS,
        "environment": ENGINE_ENV,
        "coefficients_s": found.profile.coefficients_s,
        "provenance": found.profile.provenance,
        "relative_residual": found.profile.relative_residual,
        "request_s": round(found.fit.request_s, 6),
        "request_token_s": round(found.fit.request_token_s, 9),
        "steps": phases,
    }
    RESULT.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
