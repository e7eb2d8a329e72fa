"""What does one prediction cost?

CPU time of the compiled call: as a scheduler makes it for each candidate to compare them, and as it
makes it once for the chosen one, with expected later arrivals.
"""

import argparse
from typing import Any

import numpy as np

from bench.report import Benchmark, Blocks, Numbers, made_by
from foretell.tools.harness.cases import RESERVATIONS, STATES, Size
from foretell.tools.harness.kernel import PROFILE, time_kernel
from foretell.tools.markdown import markdown_table
from foretell.tools.progress import progress

BENCH = Benchmark(__file__, __doc__, takes="a minute")
SIZES = (Size(10, 0), Size(48, 0), Size(48, 50), Size(100, 100), Size(256, 256))
USUAL = Size(48, 50)
KINDS = {"kernel_us": "to compare", "kernel_expecting_us": "of the chosen one"}
_LEVELS = ("min", "p10", "p50", "p99")


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "Number of predictions that are timed for each row."
    parser.add_argument("--predictions", type=int, default=1000, help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Time the sizes of engines one after another."""
    if options.quick:
        options.predictions = 20
    wanted = [*((size, True) for size in SIZES), (USUAL, False)]
    with progress() as bar:
        task = bar.add_task("predictions", total=len(wanted) * len(KINDS) * options.predictions)

        def timed(size: Size, ahead: bool) -> dict[str, Any]:
            found: dict[str, Any] = {"running": size.running, "waiting": size.waiting}
            for key in KINDS:
                times_s = time_kernel(
                    size,
                    options.predictions,
                    lambda: bar.advance(task),
                    async_scheduling=ahead,
                    expect_arrivals=key == "kernel_expecting_us",
                )
                values = (min(times_s), *np.percentile(times_s, (10, 50, 99)))
                for level, value_s in zip(_LEVELS, values, strict=True):
                    found[f"{key}_{level}"] = round(1e6 * float(value_s), 2)
            return {**found, "async_scheduling": ahead}

        results = [timed(*each) for each in wanted]
    return {"samples": options.predictions, "profile": PROFILE, "results": results}


def tables(numbers: Numbers) -> Blocks:
    """The CPU time of both calls."""
    text = (
        f"Sizes are running + waiting requests of an engine with {numbers['profile']}'s step time, "
        f"{RESERVATIONS} more on their way to it; {STATES} states per size with drawn prompts of "
        "16 to 1024 tokens and outputs of 32 to 512, all lengths uncertain, no shortage of KV "
        f"blocks; {numbers['samples']} predictions each. Microseconds of CPU.\n"
    )
    rows = [_row(result, key) for key in KINDS for result in numbers["results"]]
    header = ("engine", "prediction", *_LEVELS)
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(header, rows)])}


def _row(result: dict[str, Any], key: str) -> tuple[str, ...]:
    scheduling = "" if result["async_scheduling"] else ", sync scheduling"
    name = f"{result['running']} + {result['waiting']}{scheduling}"
    return (name, KINDS[key], *(f"{result[f'{key}_{level}']:.1f}" for level in _LEVELS))
