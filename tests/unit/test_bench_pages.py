"""What benches write into pages, and the lines that one of them makes of other data sets."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench.length.data import convert
from bench.report import write_into
from bench.stats import interval
from foretell.tools.length.dataset import read_examples

ARENA = {"prompt": "a", "outputs": {"m": {"tok": 5}, "n": {"tok": 0}}}
GSM8K = {"prompt": "b", "mixtral_tok": 7, "gpt4_tok": 9}
ALPACA = {"prompt": "c", "out_tok": 3}


def test_a_block_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x -->\nold\n<!-- end of x -->\nafter\n")
    for text in ("first", r"second \1 \g<0>"):
        write_into(page, "x", text)
        assert page.read_text() == f"before\n<!-- x -->\n\n{text}\n\n<!-- end of x -->\nafter\n"
    with pytest.raises(AssertionError, match="no block y"):
        write_into(page, "y", "z")


def test_every_model_gets_its_lines_in_order(tmp_path: Path) -> None:
    def write(name: str, row: dict[str, Any]) -> None:
        with gzip.open(tmp_path / "text" / name, "wt") as file:
            file.write(json.dumps(row) + "\n")

    (tmp_path / "text").mkdir()
    write("arena_hard_1k_11models.jsonl.gz", ARENA)
    write("gsm8k_test_mixtral_gpt4.jsonl.gz", GSM8K)
    write("alpaca5000.jsonl.gz", ALPACA)
    found = {
        name: [(e.conversation.prompt, e.model_name, e.output_tokens) for e in read_examples(path)]
        for name, path in convert(tmp_path, tmp_path / "out").items()
    }
    assert found == {
        "arena": [("a", "m", 5)],  # an empty answer says nothing
        "gsm8k": [("b", "mixtral", 7), ("b", "gpt4", 9)],
        "alpaca": [("c", "text-davinci-003", 3)],
    }


def test_an_interval_is_students() -> None:
    mean, half_width = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half_width == pytest.approx(4.303 / 3**0.5)
    assert interval([5.0, 5.0]) == (5.0, 0.0)
