"""What is believed of the lengths of answered prompts, as traces for the simulator."""

import csv
import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import ROOT
from foretell.length.small import SMALL
from foretell.model import LengthEstimate
from foretell.services.tagger.models import folder_of
from foretell.tools.length.dataset import Example, read_examples
from foretell.tools.length.scores import quantiles_of, score
from foretell.tools.length.taggers import HistoryTagger, load_tagger

SOURCES = ("small", "tagger", "history")
"""The schedulers' small model and the tagger's, which have learnt nothing from these answers, and
what is said without a model: the lengths of other answers to prompts of about this length."""
_PARTS = 10


def traces_of(prompts: Path, folder: Path) -> dict[str, Path]:
    """A trace for each of `SOURCES`, of the answered `prompts`; made where `folder` has it not.

    All have the same requests in the same order. Prompt tokens include earlier turns. The names
    tell what they were made of.
    """
    digest = _digest(prompts)
    traces = {source: folder / f"believed-{source}-{digest}.csv" for source in SOURCES}
    if not all(trace.exists() for trace in traces.values()):
        examples = read_examples(prompts)
        folder.mkdir(parents=True, exist_ok=True)
        _write(traces["small"], examples, load_tagger("shipped", small=True).estimate(examples))
        _write(traces["tagger"], examples, load_tagger("shipped").estimate(examples))
        _write(traces["history"], examples, _of_history(examples))
    return traces


def quality(trace: Path) -> dict[str, Any]:
    """How good the estimates in a trace are."""
    with trace.open(newline="") as file:
        rows = list(csv.DictReader(file))
    levels = [name for name in rows[0] if name.startswith("p")]
    estimates = [
        LengthEstimate(
            float(row["expected_tokens"]),
            tuple((float(name[1:]) / 100.0, float(row[name])) for name in levels),
        )
        for row in rows
    ]
    lengths = np.array([float(row["out_tok"]) for row in rows])
    means = np.array([estimate.expected_tokens for estimate in estimates])
    found = score(quantiles_of(estimates), lengths)
    return {
        "requests": len(rows),
        "prompt_tokens_mean": float(np.mean([float(row["in_tok"]) for row in rows])),
        "output_tokens_mean": float(lengths.mean()),
        "expected_tokens_mean": float(means.mean()),
        "mae": found.mae,
        "log_error_sigma": float(np.log(lengths / means).std()),
        "spearman": found.spearman,
        "coverage": found.coverage,
    }


def _of_history(examples: Sequence[Example]) -> list[LengthEstimate]:
    """Every tenth of the file by what the answers of the others were."""
    ends = [len(examples) * part // _PARTS for part in range(_PARTS + 1)]
    estimates: list[LengthEstimate] = []
    for first, last in pairwise(ends):
        history = HistoryTagger()
        for other in (*examples[:first], *examples[last:]):
            history.observe(other)
        estimates += history.estimate(examples[first:last])
    return estimates


def _write(path: Path, examples: Sequence[Example], estimates: Sequence[LengthEstimate]) -> None:
    levels = [f"p{100 * level:g}" for level, _ in estimates[0].quantiles]
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["in_tok", "out_tok", "expected_tokens", *levels])
        for example, estimate in zip(examples, estimates, strict=True):
            sizes = example.conversation.prompt_tokens, example.output_tokens
            tokens = [tokens for _, tokens in estimate.quantiles]
            lines.writerow([*sizes, estimate.expected_tokens, *tokens])
    part.replace(path)


def _digest(prompts: Path) -> str:
    """A digest of the data, the model, and the code that makes estimates."""
    digest = hashlib.sha256(prompts.read_bytes())
    for path in _sources():
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _sources() -> Iterator[Path]:
    yield from sorted(folder_of("shipped").iterdir())
    yield ROOT / "foretell" / "length" / SMALL
    for folder in ("foretell/length", "services/tagger", "tools/length"):
        yield from sorted((ROOT / folder).glob("*.py"))
    yield Path(__file__)
