"""Does a profile measured over HTTP foretell the steps that an engine then makes?

Starts a real vLLM engine with the plugin, measures it as `foretell profile measure` does, sends it
the mixed load of `bench.accuracy.record_steps`, and compares the profile with the durations that
the plugin recorded of each step. For scale: six coefficients fitted to those very steps, which is
as good as a linear step time can be on them.
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

from bench.accuracy.record_steps import ENGINE_ARGS, PHASE_S, send_load, steps_of
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.vllm_cpu import ENVIRONMENT, running_engine
from foretell.latency.linear import LinearStepTime
from foretell.model import Step
from foretell.tools.live.tap import decoded, listening
from foretell.tools.profiles.options import MeasureOptions
from foretell.tools.profiles.run import Measurement
from foretell.tools.profiles.run import measure as measure_endpoint
from foretell.tools.profiles.steps import fit, median_error

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="6 minutes",
    needs="`make setup-vllm`, a model",
    packages=("numpy", "httpx"),
)
IDLE_S = 2.0  # until the plugin has told of the last step


def compare(model: LinearStepTime, steps: Sequence[Step]) -> dict[str, Any]:
    """The model against recorded steps, and the best coefficients for them, by kind of step."""
    best = fit(steps)
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
    return round(median_error(model, steps), 4)


def tables(numbers: Numbers) -> Blocks:
    """A row for each phase and kind of step."""
    head = ("steps of", "kind", "steps", "total error", "median error", "best total", "best median")
    rows = [
        (
            phase,
            kind,
            row["steps"],
            f"{row['total_error']:+.1%}",
            f"{row['median_abs_error']:.1%}",
            f"{row['best_total_error']:+.1%}",
            f"{row['best_median_abs_error']:.1%}",
        )
        for phase, kinds in numbers["steps"].items()
        for kind, row in kinds.items()
    ]
    return {"tables": "\n".join([made_by(numbers), markdown_table(head, rows)])}


async def compared(options: argparse.Namespace) -> tuple[Measurement, dict[str, Any]]:
    """Measure, send the load, and compare."""
    async with running_engine(options.python, options.model, ENGINE_ARGS) as engine:
        with listening(engine.snapshots) as heard:
            given = MeasureOptions(
                engine.url,
                seconds=options.seconds,
                max_concurrency=48,
                max_num_seqs=48,
                max_num_batched_tokens=1024,
            )
            found = await measure_endpoint(given)
            await asyncio.sleep(IDLE_S)
            measured = steps_of(decoded(heard()))
            await send_load(engine.url, options.load_seconds)
            await asyncio.sleep(IDLE_S)
            loaded = steps_of(decoded(heard()))
    model = LinearStepTime(found.profile.coefficients_s)
    return found, {
        "the measurement": compare(model, measured),
        "the load": compare(model, loaded),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", required=True, help="A Python with vLLM.")
    parser.add_argument("--model", required=True, help="Folder of the tiny model.")
    parser.add_argument("--seconds", type=float, default=90.0, help="Time of the measurement.")
    help_text = "Time of the load."
    parser.add_argument("--load-seconds", type=float, default=6 * PHASE_S, help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Make a profile, and compare it with steps."""
    found, phases = asyncio.run(compared(options))
    return {
        "load_1min_after": round(os.getloadavg()[0], 2),
        "engine_args": ENGINE_ARGS,
        "environment": ENVIRONMENT,
        "coefficients_s": found.profile.coefficients_s,
        "provenance": found.profile.provenance,
        "relative_residual": found.profile.relative_residual,
        "request_s": round(found.fit.request_s, 6),
        "request_token_s": round(found.fit.request_token_s, 9),
        "steps": phases,
    }
