"""How much does the shipped length model need to read?

    python -m bench.length_window DATA

The model reads less than it learnt from; nothing is trained. DATA holds `text/` with ShareGPT
conversations, which are not part of this repository. Writes bench/results/length_window.json, .md
and what docs/length-tagger.md says of it.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.length_eval import PAGE, cost
from bench.stats import markdown_table, write_into
from cli.bench.machine import describe_machine, describe_run, machine_line
from cli.length.dataset import read_examples
from cli.length.scores import quantiles_of, score
from cli.length.taggers import load_tagger
from foretell.length.window import Window
from services.tagger.encoder import folder_of
from services.tagger.reading import Description

RESULTS = Path(__file__).resolve().parent / "results"
HEADER = ("", "MAE", "Acc-50", "Spearman", "pinball", "50 / 80 / 95% interval")

WINDOWS = {
    "all that it learnt from": Window(),
    "less of the prompt": Window(prompt=(48, 16)),
    "half of everything": Window((32, 16), (10, 3), (5, 8)),
    "not the earlier answer": Window(answered=(0, 0)),
    "not the earlier prompt": Window(asked=(0, 0)),
    "neither": Window(asked=(0, 0), answered=(0, 0)),
}


def read_less(val: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Scores on `val` of the shipped model with each window; copies of it are made in `work`."""
    examples, found = read_examples(val), {}
    for name, window in WINDOWS.items():
        folder = work / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folder_of("shipped"), folder)
        replace(Description.read(folder), window=window).write(folder)
        quantiles = quantiles_of(load_tagger(str(folder)).estimate(examples))
        scores = score(quantiles, [example.output_tokens for example in examples])
        found[name] = {**asdict(scores), **cost(str(folder), examples)}
    return found


def score_cells(name: str, s: dict[str, Any]) -> list[str]:
    """Under `HEADER`."""
    return [
        name,
        *(f"{s['mae']:.1f}", f"{s['acc_50']:.1%}", f"{s['spearman']:.3f}", f"{s['pinball']:.2f}"),
        " / ".join(f"{100 * share:.1f}" for share in s["coverage"].values()),
    ]


def markdown(result: dict[str, Any]) -> str:
    """Of bench/results/length_window.md, and of the page on the tagger."""
    rows = [
        [
            *score_cells(name, s),
            *(f"{s['cpu_ms']:.2f}", f"{s['tokens_read']:.0f}"),
            *(f"{s['with_earlier_cpu_ms']:.2f}", f"{s['with_earlier_tokens_read']:.0f}"),
        ]
        for name, s in result["windows"].items()
    ]
    return "\n".join(
        [
            f"Made by `{result['command']}` on {result['date']}; "
            f"{machine_line(result['machine'])}.\n",
            "The shipped model where it reads less than it learnt from, on ShareGPT's other "
            "conversations; it was not trained anew. CPU is that of one thread for prompts of "
            "about 128 tokens, by themselves and with what came before them.\n",
            markdown_table(
                (*HEADER, "CPU ms", "tokens read", "CPU ms in a conversation", "tokens read"), rows
            ),
        ]
    )


def main() -> None:
    """Measure and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with text/")
    text = parser.parse_args().data / "text"
    facts = {
        **describe_run("bench.length_window"),
        "machine": describe_machine("foretell", "onnxruntime"),
    }
    facts["command"] = "python -m bench.length_window DATA"  # wherever that is
    with tempfile.TemporaryDirectory() as work:
        windows = read_less(text / "sharegpt_val.jsonl.gz", Path(work))
    result = {**facts, "windows": windows}
    (RESULTS / "length_window.json").write_text(json.dumps(result, indent=1) + "\n")
    written = markdown(result)
    (RESULTS / "length_window.md").write_text(f"# How much it needs to read\n\n{written}")
    write_into(PAGE, "length_window", written)
    print(written)


if __name__ == "__main__":
    main()
