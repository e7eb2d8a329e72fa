"""The chats that ship, for `foretell demo` and for simulations without a trace.

    python -m bench.shipped.chats ARENA.jsonl.gz GSM8K.jsonl.gz

ARENA are the questions of FastChat's `llm_judge/data/arena_hard_1k`, with the answers of
Llama-2-70b-chat; GSM8K those of the test set, with the answers of Mixtral that RouteLLM published
(both repositories: Apache-2.0; GSM8K: MIT). Writes `foretell/workload/chats.jsonl.gz`.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from bench.report import ROOT
from foretell.workload.chats import FILE

_OF_EACH = 120
_LONGEST_CHARACTERS = 1000


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The lines whose prompts are short and in English, each prompt once."""
    seen: set[str] = set()
    with gzip.open(path, "rt") as lines:
        for row in map(json.loads, lines):
            prompt = row["prompt"]
            if prompt.isascii() and len(prompt) <= _LONGEST_CHARACTERS and prompt[:80] not in seen:
                seen.add(prompt[:80])
                yield row


def chat(prompt: str, prompt_tokens: int, output_tokens: int, source: str) -> dict[str, Any]:
    return {"prompt": prompt, "in_tok": prompt_tokens, "out_tok": output_tokens, "source": source}


def make(arena: Path, gsm8k: Path, out: Path) -> None:
    """Write the file `out`."""
    asked = [
        chat(row["prompt"], row["in_tok"], row["outputs"]["Llama-2-70b-chat"]["tok"], "arena-hard")
        for row in rows(arena)
    ]
    solved = [chat(r["prompt"], r["in_tok"], r["mixtral_tok"], "gsm8k") for r in rows(gsm8k)]
    found = asked[:_OF_EACH] + solved[:_OF_EACH]
    Random(1).shuffle(found)
    text = "".join(json.dumps(each) + "\n" for each in found)
    out.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("arena", type=Path)
    parser.add_argument("gsm8k", type=Path)
    given = parser.parse_args()
    make(given.arena, given.gsm8k, ROOT / "foretell" / "workload" / FILE)


if __name__ == "__main__":
    main()
