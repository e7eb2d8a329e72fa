"""What each part of the length model is worth.

    python -m bench.length.ablation DATA ENCODER WORK [--limit 5000] [--epochs 2]

Trains variants on a fraction of the data.
DATA holds `text/` with ShareGPT conversations and ENCODER is a MiniLM of six layers, neither part
of this repository; WORK keeps the trained models, and a run that was stopped goes on from there.
Needs `pip install 'foretell[train]'`. Writes bench/length/results/ablation.json, .md and
what docs/length-tagger.md says of it.
"""

import argparse
import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.length.eval import PAGE, cost
from bench.length.window import HEADER, score_cells
from bench.stats import markdown_table, write_into
from foretell.length.window import Window
from tools.harness.machine import describe_machine, describe_run, machine_line
from tools.length.dataset import read_examples
from tools.train.options import SCRATCH, TrainOptions
from tools.train.run import train_tagger

RESULTS = Path(__file__).resolve().parent / "results"
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
"""What is changed of the options."""


def run(base: TrainOptions, val: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Scores on `val` of each variant, and what it costs."""
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


def markdown(result: dict[str, Any]) -> str:
    """bench/length/results/ablation.md."""
    variants = [
        [*score_cells(name, s), f"{s['cpu_ms']:.2f}", f"{s['megabytes']:.1f}"]
        for name, s in result["variants"].items()
    ]
    return "\n".join(
        [
            f"Made by `{result['command']}` on {result['date']}; "
            f"{machine_line(result['machine'])}.\n",
            f"Each is trained on {result['limit']:,} answers, {result['epochs']} times, with one "
            "seed: worse than the shipped model, which has seen them all. Scored on ShareGPT's "
            "other conversations, after export to 8 bits. CPU is that of one thread per prompt of "
            "about 128 tokens without what came before, some prompts together.\n",
            markdown_table((*HEADER, "CPU ms", "MB"), variants),
        ]
    )


def main() -> None:
    """Measure and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with text/")
    parser.add_argument("encoder", type=Path, help="folder of a MiniLM of six layers")
    parser.add_argument("work", type=Path, help="folder for what is trained")
    parser.add_argument("--limit", type=int, default=5_000, help="answers to learn from")
    parser.add_argument("--epochs", type=int, default=2, help="times they are gone through")
    given = parser.parse_args()
    facts = {
        **describe_run("bench.length.ablation"),
        "machine": describe_machine("torch", "transformers", "onnxruntime"),
    }
    facts["command"] = "python -m bench.length.ablation DATA ENCODER WORK"  # wherever those are
    text = given.data / "text"
    base = TrainOptions(
        train=text / "sharegpt_train.jsonl.gz",
        out=given.work,
        encoder=str(given.encoder),
        tokenizer=str(given.encoder / "tokenizer.json"),
        layers=_LAYERS,
        epochs=given.epochs,
        limit=given.limit,
    )
    variants = run(base, text / "sharegpt_val.jsonl.gz", given.work)
    result = {**facts, "limit": given.limit, "epochs": given.epochs, "variants": variants}
    (RESULTS / "length_ablation.json").write_text(json.dumps(result, indent=1) + "\n")
    written = markdown(result)
    heading = "# What each part of the length model is worth\n\n"
    (RESULTS / "length_ablation.md").write_text(heading + written)
    write_into(PAGE, "length_ablation", written)
    print(written)


if __name__ == "__main__":
    main()
