"""What does one prediction cost?

CPU time of the compiled call, as a scheduler makes it for each candidate to compare them, and as it
makes it once for the chosen one, with the requests that are expected to come later.
"""

import argparse
from typing import Any

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.tools.harness.cases import RESERVATIONS, STATES, Size
from foretell.tools.harness.predict import PredictOptions, measure_predict

BENCH = Benchmark(__file__, __doc__, takes="a minute")
SIZES = (Size(10, 0), Size(48, 0), Size(48, 50), Size(100, 100), Size(256, 256))
USUAL = Size(48, 50)
KINDS = {"kernel_us": "to compare", "kernel_expecting_us": "of the chosen one"}
_LEVELS = ("min", "p10", "p50", "p99")


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "Number of predictions that are timed for each row."
    parser.add_argument("--predictions", type=int, default=1000, help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Time one size of engine after the other."""
    wanted = [PredictOptions(size, options.predictions) for size in SIZES]
    wanted.append(PredictOptions(USUAL, options.predictions, async_scheduling=False))
    results = [measure_predict(each) for each in wanted]
    for result in results:
        del result["machine"]
    return {"results": results}


def tables(numbers: Numbers) -> Blocks:
    """The CPU time of both calls."""
    results = numbers["results"]
    first = results[0]
    text = (
        f"Sizes are running + waiting requests of an engine with {first['profile']}'s step time, "
        f"{RESERVATIONS} more on their way to it; {STATES} states per size with drawn prompts of "
        "16 to 1024 tokens and outputs of 32 to 512, all lengths uncertain, no shortage of KV "
        f"blocks; {first['samples']} predictions each. Microseconds of CPU.\n"
    )
    rows = [_row(result, key) for key in KINDS for result in results]
    header = ("engine", "prediction", *_LEVELS)
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(header, rows)])}


def _row(result: dict[str, Any], key: str) -> tuple[str, ...]:
    scheduling = "" if result["async_scheduling"] else ", sync scheduling"
    name = f"{result['running']} + {result['waiting']}{scheduling}"
    return (name, KINDS[key], *(f"{result[f'{key}_{level}']:.1f}" for level in _LEVELS))
