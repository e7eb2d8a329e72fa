"""How far off are predictions against a live engine, with lengths known?

Starts one vLLM engine on the CPU and its predictor, finds its capacity, and sends it a bursty load.
"""

import argparse

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.vllm_cpu import running_engine
from foretell.services.process.children import ChildFailed
from foretell.tools.live.measure import LiveOptions, completed
from foretell.tools.live.measure import measure as measure_engine
from foretell.tools.live.recording import Recording
from foretell.tools.live.report import COLUMNS, LATENCIES, cells, report
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
    "--max-num-seqs {max_num_seqs} --max-num-batched-tokens 512 --num-gpu-blocks-override 200 "
    "--disable-uvicorn-access-log"
)


async def record(options: argparse.Namespace, show: Show) -> Recording:
    """Start the engine, measure, and end it."""
    engine_args = options.engine_args.format(max_num_seqs=options.max_num_seqs)
    async with running_engine(options.python, options.model, engine_args) as engine:
        load = LiveOptions(
            engine.url,
            engine.predictor,
            engine.snapshots,
            requests=options.requests,
            warm_up=options.warm_up,
            utilisation=options.utilisation,
            rate_per_s=options.rate,
            seed=options.seed,
        )
        found = await measure_engine(load, show)
        facts = {
            "pinned": engine.pinned,
            "engine": f"`{engine_args}`",
        }
    return Recording({**found.about, **facts}, found.requests, found.snapshots)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", default=".venv-vllm/bin/python", help="A Python with vLLM.")
    parser.add_argument("--model", default=".models/deep-llama", help="Folder of the model.")
    help_text = "Flags of vLLM; {max_num_seqs} stands for --max-num-seqs."
    parser.add_argument("--engine-args", default=ENGINE_ARGS, help=help_text)
    parser.add_argument("--requests", type=int, default=400, help="Requests that are measured.")
    parser.add_argument("--warm-up", type=int, default=100, help="Requests sent before them.")
    help_text = "Mean rate as a ratio of the engine's capacity."
    parser.add_argument("--utilisation", type=float, default=0.7, help=help_text)
    help_text = "Mean rate in requests a second, instead of --utilisation."
    parser.add_argument("--rate", type=float, default=0.0, help=help_text)
    parser.add_argument("--max-num-seqs", type=int, default=8, help="As in vLLM.")
    parser.add_argument("--seed", type=int, default=1)
    help_text = "30 requests behind 10; writes nothing."
    parser.add_argument("--quick", action="store_true", help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Measure the engine."""
    if options.quick:
        options.write, options.requests, options.warm_up = False, 30, 10
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
