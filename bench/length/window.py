"""How much does the shipped length model need to read?

It is made to read less, or other ends of a prompt; nothing is trained. DATA holds `text/` with
ShareGPT conversations.
"""

import argparse
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.length.eval import cost
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.length.window import Window
from services.tagger.encoder import folder_of
from services.tagger.reading import Description
from tools.length.dataset import Example, read_examples
from tools.length.scores import quantiles_of, score
from tools.length.taggers import Tagger, load_tagger
from tools.train.inputs import hold_out
from tools.train.options import TrainOptions

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    paths={"DATA": "folder with text/"},
    packages=("foretell", "onnxruntime"),
)
HEADER = ("", "MAE", "Acc-50", "Spearman", "pinball", "50 / 80 / 95% interval")

LEARNT = Window((24, 32), (10, 6), (4, 18))
READ = replace(LEARNT, prompt=(20, 40))
WINDOWS = {
    "as it is shipped": READ,
    "as it learnt": LEARNT,
    "as much, more of it from the head": replace(READ, prompt=(40, 20)),
    "half as much": Window((10, 20), (5, 3), (2, 9)),
    "not the earlier answer": replace(READ, answered=(0, 0)),
    "not the earlier prompt": replace(READ, asked=(0, 0)),
    "neither": replace(READ, asked=(0, 0), answered=(0, 0)),
}


def read_less(
    held: list[Example], val: list[Example], work: Path
) -> dict[str, dict[str, dict[str, Any]]]:
    """Scores of the shipped model with each window, on both, and what each costs.

    Copies of the model are made in `work`.
    """
    found = {}
    for name, window in WINDOWS.items():
        folder = work / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folder_of("shipped"), folder)
        replace(Description.read(folder), window=window).write(folder)
        tagger = load_tagger(str(folder))
        found[name] = {
            "held": _scores(tagger, held),
            "val": _scores(tagger, val),
            "cost": cost(str(folder), val),
        }
    return found


def _scores(tagger: Tagger, examples: list[Example]) -> dict[str, Any]:
    lengths = [example.output_tokens for example in examples]
    return asdict(score(quantiles_of(tagger.estimate(examples)), lengths))


def score_cells(name: str, s: dict[str, Any]) -> list[str]:
    """The cells of a row under `HEADER`."""
    return [
        name,
        *(f"{s['mae']:.1f}", f"{s['acc_50']:.1%}", f"{s['spearman']:.3f}", f"{s['pinball']:.2f}"),
        " / ".join(f"{100 * share:.1f}" for share in s["coverage"].values()),
    ]


def tables(result: Numbers) -> Blocks:
    """A row for each window."""
    rows = [
        [
            name,
            *(f"{found['held']['mae']:.1f}", f"{found['held']['pinball']:.2f}"),
            *score_cells("", found["val"])[1:],
            *(f"{spent['cpu_ms']:.2f}", f"{spent['tokens_read']:.0f}"),
            *(f"{spent['with_earlier_cpu_ms']:.2f}", f"{spent['with_earlier_tokens_read']:.0f}"),
        ]
        for name, found in result["windows"].items()
        for spent in [found["cost"]]
    ]
    text = "\n".join(
        [
            made_by(result),
            "The shipped model where it reads more or less, not trained anew: first on the "
            f"conversations held out from its training ({result['held_out']:,} answers), by which "
            "its window was chosen, then on ShareGPT's other ones. CPU is that of one thread for "
            "prompts of about 128 tokens, by themselves and with what came before them.\n",
            markdown_table(
                (
                    *("", "held out: MAE", "pinball", *HEADER[1:]),
                    *("CPU ms", "tokens read", "CPU ms in a conversation", "tokens read"),
                ),
                rows,
            ),
        ]
    )
    return {"tables": text}


def measure(options: argparse.Namespace) -> Numbers:
    """Score the model with every window."""
    text = options.data / "text"
    with tempfile.TemporaryDirectory() as work:
        training = read_examples(text / "sharegpt_train.jsonl.gz")
        _, held = hold_out(training, TrainOptions(Path(), Path(), "").held_out)
        val = read_examples(text / "sharegpt_val.jsonl.gz")
        windows = read_less(held, val, Path(work))
    return {"held_out": len(held), "windows": windows}


if __name__ == "__main__":
    BENCH.main(measure, tables)
