"""What is each part of the length model worth?

Trains variants on a fraction of the data. DATA holds `text/` with ShareGPT conversations, ENCODER a
MiniLM of six layers; WORK keeps the trained models, and an interrupted run goes on from there.
"""

import argparse
import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.length.eval import cost
from bench.length.window import HEADER, score_cells
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.length.window import Window
from tools.length.dataset import read_examples
from tools.train.options import SCRATCH, TrainOptions

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="3 hours",
    needs="`make setup-train`",
    python=".venv-train/bin/python",
    paths={
        "DATA": "folder with text/",
        "ENCODER": "folder of a MiniLM of six layers",
        "WORK": "folder for what is trained",
    },
    packages=("torch", "transformers", "onnxruntime"),
)
_LAYERS = 3
NOTHING = Window((0, 0), (0, 0), (0, 0))

VARIANTS: dict[str, dict[str, Any]] = {
    "3 layers, a window of 64 32 20 6 10 16": {},
    "1 layer": {"layers": 1},
    "6 layers": {"layers": 6},
    "a RoBERTa of 3 layers from scratch": {"encoder": SCRATCH},
    "a window of 32 32 10 6 4 18": {"window": Window((32, 32), (10, 6), (4, 18))},
    "the prompt's first 128 tokens alone": {"window": Window((128, 0), (0, 0), (0, 0))},
    "text alone, no figures": {"figures": False},
    "figures alone, no text": {"window": NOTHING, "layers": 1},
    "the true bin alone as target": {"neighbours": 0.0},
}
"""Changed options of each variant."""


def run(base: TrainOptions, val: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Scores on `val` of each variant, and what it costs."""
    from tools.train.run import train_tagger  # noqa: PLC0415  needs torch

    found: dict[str, dict[str, Any]] = {}
    console = Console(stderr=True)
    examples = read_examples(val)
    for number, (name, changes) in enumerate(VARIANTS.items()):
        console.print(f"{name} ({number + 1} of {len(VARIANTS)})")
        out = work / f"{base.limit}x{base.epochs}" / re.sub(r"\W+", "-", name)
        done = out / "scores.json"
        if not done.exists():
            began_s = time.process_time()
            scores = train_tagger(replace(base, out=out, **changes), [val], console)
            row = {**asdict(scores[val.name]), "training_cpu_s": time.process_time() - began_s}
            row["megabytes"] = (out / "model.onnx").stat().st_size / 1e6
            row.update(cost(str(out), examples))
            done.write_text(json.dumps(row, indent=1) + "\n")
        found[name] = json.loads(done.read_text())
    return found


def tables(result: Numbers) -> Blocks:
    """A row for each variant."""
    variants = [
        [*score_cells(name, s), f"{s['cpu_ms']:.2f}", f"{s['megabytes']:.1f}"]
        for name, s in result["variants"].items()
    ]
    text = "\n".join(
        [
            made_by(result),
            f"Each is trained on {result['limit']:,} answers, {result['epochs']} times, with one "
            "seed: worse than the shipped model, which has seen them all. Scored on ShareGPT's "
            "other conversations, after export to 8 bits. CPU is that of one thread per prompt of "
            "about 128 tokens without what came before, some prompts together.\n",
            markdown_table((*HEADER, "CPU ms", "MB"), variants),
        ]
    )
    return {"tables": text}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=5_000, help="Answers to learn from.")
    parser.add_argument("--epochs", type=int, default=2, help="Passes over them.")


def measure(options: argparse.Namespace) -> Numbers:
    """Train and score every variant."""
    text = options.data / "text"
    base = TrainOptions(
        train=text / "sharegpt_train.jsonl.gz",
        out=options.work,
        encoder=str(options.encoder),
        tokenizer=str(options.encoder / "tokenizer.json"),
        layers=_LAYERS,
        epochs=options.epochs,
        limit=options.limit,
    )
    variants = run(base, text / "sharegpt_val.jsonl.gz", options.work)
    return {"limit": options.limit, "epochs": options.epochs, "variants": variants}


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
