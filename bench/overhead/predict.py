"""What does one prediction cost?

`foretell bench predict` for engines of several sizes, and for one of them over TCP and without
async scheduling.
"""

import argparse
from typing import Any

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.tools.harness.cases import RESERVATIONS, STATES, Size
from foretell.tools.harness.predict import PredictOptions, measure_predict

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="3 minutes",
    packages=("foretell", "numpy", "grpcio", "protobuf", "uvloop"),
)
SIZES = (Size(10, 0), Size(48, 0), Size(48, 50), Size(100, 100), Size(256, 256))
USUAL = Size(48, 50)
ANCHOR = (
    "For comparison: the Block artifact needs 45 to 63 ms per prediction at 48 running + 50 "
    "waiting, as measured by this project's owners."
)
_SNAPSHOT = {
    "snapshot_write_us": "written",
    "snapshot_read_us": "read and checked",
    "snapshot_take_us": "taken into the cache",
}
_LEVELS = ("min", "p10", "p50", "p99")

Result = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "Number of predictions that are timed for each row."
    parser.add_argument("--predictions", type=int, default=1000, help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Time one row of the page after the other."""
    wanted = [PredictOptions(size, options.predictions) for size in SIZES]
    wanted.append(PredictOptions(USUAL, options.predictions, async_scheduling=False))
    results = [measure_predict(each) for each in wanted]
    for result in results:
        del result["machine"]
    return {"anchor": ANCHOR, "results": results}


def tables(numbers: Numbers) -> Blocks:
    """The twin's CPU time, and the calls over a socket."""
    results = numbers["results"]
    first = results[0]
    text = "\n".join(
        (
            made_by(numbers),
            f"Sizes are running + waiting requests of an engine with {first['profile']}'s step "
            f"time, {RESERVATIONS} more on their way to it; {STATES} states per size with drawn "
            f"prompts of 16 to 1024 tokens and outputs of 32 to 512, no shortage of KV blocks; "
            f"{first['samples']} predictions each. [How it is measured](#how-it-is-measured)."
            "\n",
            "## The twin: microseconds of CPU per prediction\n",
            "As a scheduler asks each instance, to compare them:\n",
            markdown_table(("engine", *_LEVELS), [_row(r, "kernel_us", 1) for r in results]),
            "As the chosen one is asked, to foretell what it will do: with up to 64 requests that "
            "are expected to come later.\n",
            markdown_table(
                ("engine", *_LEVELS), [_row(r, "kernel_expecting_us", 1) for r in results]
            ),
            ANCHOR + "\n",
            "## A snapshot: microseconds of CPU\n",
            "Each engine's comes at most ten times a second, written once for all followers.\n",
            markdown_table(
                ("engine", *_LEVELS),
                [
                    (f"{_name(result)}: {what}", *row)
                    for result in results
                    for key, what in _SNAPSHOT.items()
                    for _, *row in [_row(result, key, 1)]
                ],
            ),
        )
    )
    return {"tables": text}


def _row(result: Result, key: str, digits: int) -> tuple[str, ...]:
    return (_name(result), *(f"{result[f'{key}_{level}']:.{digits}f}" for level in _LEVELS))


def _name(result: Result) -> str:
    scheduling = "" if result["async_scheduling"] else ", sync scheduling"
    return f"{result['running']} + {result['waiting']}{scheduling}"
