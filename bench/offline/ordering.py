"""What does it cost to order a large file of offline requests?

Prompts come one by one and are not kept: groups of 200 share a prefix of half their tokens, the
rest is random. Ordering is the prefix tree, sampling, learning lengths, densities, and BlendServe's
sort and splits; what makes the prompts is not counted. Memory is the process's, all in all.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from foretell.offline.lengths import Lengths, learnt, sampled, strata
from foretell.offline.ordering import blended
from foretell.offline.tree import Prompt, prefix_tree
from foretell.offline.work import WorkModel

BENCH = Benchmark(__file__, __doc__, takes="3 minutes", processes=1)
FILES = ((1_000_000, 256), (50_000, 8000))
"""Requests, and tokens of a prompt."""
WORK = WorkModel(60e-6, 0.0, 60e-6, 75.6e-9, 9.27e-3)
_GROUP = 200
_PRIOR_TOKENS = 300.0


class Made:
    """Prompts one after the other, and the CPU seconds that making them takes."""

    def __init__(self, requests: int, tokens: int) -> None:
        self._requests, self._tokens = requests, tokens
        self.cpu_s = 0.0

    def __iter__(self) -> Iterator[Prompt]:
        draws, shared = np.random.default_rng(1), np.zeros(0, np.uint32)
        for request in range(self._requests):
            began_s = time.process_time()
            if request % _GROUP == 0:
                shared = draws.integers(0, 1 << 17, self._tokens // 2, np.uint32)
            own = draws.integers(0, 1 << 17, self._tokens - len(shared), np.uint32)
            prompt = np.concatenate((shared, own))
            self.cpu_s += time.process_time() - began_s
            yield prompt


def ordered(file: tuple[int, int]) -> dict[str, Any]:
    """The figures of one file."""
    made = Made(*file)
    began_s = time.process_time()
    tree = prefix_tree(made)
    tree_s = time.process_time() - began_s - made.cpu_s
    unknown = np.zeros(tree.requests, np.int64)
    samples = sampled(tree, 0.5, unknown)
    answers = np.random.default_rng(2).integers(1, 2000, len(samples))
    guess = Lengths.guess(tree.requests, _PRIOR_TOKENS)
    lengths = learnt(strata(tree, samples), samples, answers, guess)
    _, order = blended(tree, WORK, lengths.mean, lengths.square)
    assert len(np.unique(order)) == tree.requests, "every request has its place"
    cpu_s = time.process_time() - began_s - made.cpu_s
    return {
        "requests": file[0],
        "tokens": file[1],
        "tree_cpu_s": round(tree_s, 1),
        "cpu_s": round(cpu_s, 1),
        "gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 2),
    }


def tables(numbers: Numbers) -> Blocks:
    """A row for each file."""
    rows = [
        (
            f"{one['requests']:,}",
            f"{one['tokens']:,}",
            f"{one['tree_cpu_s']:.1f}",
            f"{one['cpu_s']:.1f}",
            f"{one['gib']:.2f}",
        )
        for one in numbers["files"]
    ]
    header = ("requests", "tokens each", "CPU s of the tree", "CPU s in all", "most memory, GiB")
    return {"tables": made_by(numbers) + "\n" + markdown_table(header, rows)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--share", type=float, default=1.0, help="Of the requests of each file.")


def measure(options: argparse.Namespace) -> Numbers:
    """Order every file, each in a process of its own."""
    files = [(round(options.share * requests), tokens) for requests, tokens in FILES]
    return {"files": [run_each(ordered, [file], 1)[0] for file in files]}


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
