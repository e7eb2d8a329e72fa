"""Prompts answered by several models, as the lines that `foretell length eval` reads.

    python -m bench.length.data DATA OUT

DATA holds `text/` with data sets that are not part of this repository. Writes one file per data
set: Arena Hard answered by eleven models, GSM8K by two, Alpaca by one.
"""

import argparse
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def _arena(row: Row) -> Iterator[Row]:
    for model, answer in row["outputs"].items():
        yield {"prompt": row["prompt"], "out_tok": answer["tok"], "model": model}


def _gsm8k(row: Row) -> Iterator[Row]:
    for model in ("mixtral", "gpt4"):
        yield {"prompt": row["prompt"], "out_tok": row[f"{model}_tok"], "model": model}


def _alpaca(row: Row) -> Iterator[Row]:
    yield {"prompt": row["prompt"], "out_tok": row["out_tok"], "model": "text-davinci-003"}


SETS: dict[str, tuple[str, Callable[[Row], Iterator[Row]]]] = {
    "arena": ("arena_hard_1k_11models.jsonl.gz", _arena),
    "gsm8k": ("gsm8k_test_mixtral_gpt4.jsonl.gz", _gsm8k),
    "alpaca": ("alpaca5000.jsonl.gz", _alpaca),
}
"""File, and what becomes of one of its rows; rows keep their order."""


def convert(data: Path, out: Path) -> dict[str, Path]:
    """The files written to the folder `out`, by data set. Empty answers are left out."""
    out.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, (file, rows_of) in SETS.items():
        written[name] = out / f"{name}.jsonl"
        with (
            gzip.open(data / "text" / file, "rt", encoding="utf-8") as lines,
            written[name].open("w", encoding="utf-8") as target,
        ):
            for line in lines:
                for row in rows_of(json.loads(line)):
                    if row["out_tok"] > 0:
                        target.write(json.dumps(row) + "\n")
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    for name, path in convert(given.data, given.out).items():
        print(f"{name}: {path}")


if __name__ == "__main__":
    main()
