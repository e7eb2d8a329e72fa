"""How far off are predictions against a live engine, with lengths known?

Starts one vLLM engine on the CPU and its predictor, finds its capacity, and sends it a bursty load.
"""

import argparse

from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.vllm_cpu import running_engine
from foretell.services.process.children import ChildFailed
from foretell.tools.live.measure import LiveOptions, completed
from foretell.tools.live.measure import measure as measure_engine
from foretell.tools.live.recording import Recording
from foretell.tools.live.report import COLUMNS, LATENCIES, cells, report
from foretell.tools.markdown import markdown_table
from foretell.tools.progress import Show, showing

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="6 minutes",
    needs="`make setup-vllm`, a model (`make accuracy-live` makes one)",
    packages=("foretell", "grpcio", "protobuf", "uvloop"),
)
ENGINE_ARGS = (
    "--enforce-eager --dtype float32 --distributed-executor-backend uni --max-model-len 2048 "
    "--max-num-seqs 8 --max-num-batched-tokens 512 --num-gpu-blocks-override 200 "
    "--disable-uvicorn-access-log"
)
REQUESTS, QUICK = (400, 100), (30, 10)
"""Requests that are measured, and that are sent before them to warm up."""


async def record(options: argparse.Namespace, show: Show) -> Recording:
    """Start the engine, measure, and end it."""
    requests, warm_up = QUICK if options.quick else REQUESTS
    async with running_engine(options.python, options.model, ENGINE_ARGS) as engine:
        load = LiveOptions(
            engine.url,
            engine.predictor,
            engine.snapshots,
            requests=requests,
            warm_up=warm_up,
        )
        found = await measure_engine(load, show)
        facts = {
            "pinned": engine.pinned,
            "engine": f"`{ENGINE_ARGS}`",
        }
    return Recording({**found.about, **facts}, found.requests, found.snapshots)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", default=".venv-vllm/bin/python", help="A Python with vLLM.")
    parser.add_argument("--model", default=".models/deep-llama", help="Folder of the model.")


def measure(options: argparse.Namespace) -> Numbers:
    """Measure the engine."""
    try:
        with showing("starting vLLM") as show:
            return report(completed(record(options, show)))
    except ChildFailed as error:
        raise SystemExit(f"bench.{BENCH.name}: {error}") from error


def tables(result: Numbers) -> Blocks:
    """Errors of all predictors, and of the same forecasts with more knowledge."""
    load = result["load"]
    text = (
        f"{load['measured']} requests in {load['measured_s']:.0f} s behind {load['warm_up']} to "
        f"warm up, seed {load['seed']}; {load['rate_per_s']:.2f} requests/s in bursts"
        + (f" of at most {load['capacity_per_s']:.2f}" if load["capacity_per_s"] else "")
        + f"; prompts of {load['prompt_tokens'] / load['measured']:.0f} tokens on average, outputs "
        f"of {load['output_tokens'] / load['measured']:.0f}, which are known; "
        f"{result['engine_version']}, {result['engine']}. Absolute errors, and the signed median.\n"
    )
    names = {"ttft": "TTFT", "e2e": "e2e"}
    header = ("predicted by", *(f"{names[kind]} {col}" for kind in LATENCIES for col in COLUMNS))
    rows = [[f"`{name}`", *cells(kinds)] for name, kinds in result["errors"].items()]
    return {"tables": "\n".join([made_by(result), text, markdown_table(header, rows)])}
