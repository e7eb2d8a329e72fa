"""How far off are predictions against a real, live engine? Writes docs/accuracy-live.md.

    make accuracy-live
    python -m bench.accuracy.live --python PYTHON_WITH_VLLM --model FOLDER
    python -m bench.accuracy.live --replay RECORDING

The first two start one vLLM engine on the CPU and its predictor, find its capacity, send it a
bursty load, and record everything. The last takes a recording apart again with the code as it is
now, in seconds, prints the tables and writes nothing.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.accuracy.live_engine import ENGINE_ARGS, OthersClock, running_engine
from bench.accuracy.live_report import PAGE, PICTURE, TITLES, error_table, scatter, write_page
from bench.accuracy.live_variants import Analysis
from services.process.children import ChildFailed
from tools.harness.machine import describe_machine
from tools.live.measure import LiveOptions, completed, measure
from tools.live.recording import Recording
from tools.live.report import all_pairs, report

RESULTS = Path(__file__).resolve().parent / "results" / "accuracy_live.json"
PACKAGES = ("foretell", "numba", "grpcio", "protobuf", "uvloop")


async def record(arguments: argparse.Namespace, progress: Progress) -> Recording:
    """Start the engine, measure, and end it."""
    machine = describe_machine(*PACKAGES)
    bar = progress.add_task("starting vLLM", total=None)

    def show(what: str, done: int, total: int) -> None:
        progress.update(bar, description=what, completed=done, total=total)

    async with running_engine(arguments.python, arguments.model, arguments.max_num_seqs) as engine:
        options = LiveOptions(
            engine.url,
            engine.predictor,
            engine.snapshots,
            requests=arguments.requests,
            warm_up=arguments.warm_up,
            utilisation=arguments.utilisation,
            rate_per_s=arguments.rate,
            seed=arguments.seed,
        )
        clock = OthersClock(engine.processes)
        found = await measure(options, show)
        facts = {
            "machine": machine,
            "others_cores": round(clock.cores(), 2),
            "pinned": engine.pinned,
            "engine": f"`{ENGINE_ARGS.format(max_num_seqs=arguments.max_num_seqs)}`",
        }
    return Recording({**found.about, **facts}, found.requests, found.snapshots)


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    print(error_table(result["errors"], TITLES))
    print(error_table(result["analysis"]["errors"]))


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=".venv-vllm/bin/python", help="one that has vLLM")
    parser.add_argument("--model", default=".models/deep-llama", help="folder of the model")
    parser.add_argument("--requests", type=int, default=400, help="that are measured")
    parser.add_argument("--warm-up", type=int, default=100, help="of the same load before")
    parser.add_argument("--utilisation", type=float, default=0.7, help="mean, of the capacity")
    parser.add_argument("--rate", type=float, default=0.0, help="a second; 0: by utilisation")
    parser.add_argument("--max-num-seqs", type=int, default=8, help="as in vLLM")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--recording", type=Path, default=Path(".run/accuracy-live.zip"), help="file to write"
    )
    parser.add_argument("--replay", type=Path, help="a recording to take apart; measures nothing")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        recording = Recording.read(arguments.replay)
        show({**report(recording), "analysis": Analysis(recording).report()})
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
            recording = completed(record(arguments, progress))
    except ChildFailed as error:
        raise SystemExit(f"accuracy_live: {error}") from error
    arguments.recording.parent.mkdir(parents=True, exist_ok=True)
    recording.write(arguments.recording)
    result = {**report(recording), "analysis": Analysis(recording).report()}
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    write_page(result)
    scatter(all_pairs(recording))
    show(result)
    print(f"wrote {PAGE}, {PICTURE}, {RESULTS} and {arguments.recording}")


if __name__ == "__main__":
    main()
