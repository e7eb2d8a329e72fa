"""`foretell length eval`: evaluates a tagger on the examples of one file."""

import time
from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from foretell.length import PRIOR_TOKENS
from foretell.tools.length.dataset import Example
from foretell.tools.length.scores import Floats, coverage, quantiles_of, score
from foretell.tools.length.taggers import Tagger
from foretell.tools.progress import Show

_BATCH = 32  # examples estimated at once, if the tagger does not learn between them
_SETTLED = 300  # first answers of a model, on which its intervals are not evaluated


def evaluate(
    tagger: Tagger,
    examples: Sequence[Example],
    *,
    stream: bool,
    show: Show,
) -> dict[str, Any]:
    """What `foretell length eval` prints (docs/tools.md explains the keys).

    With `stream` the tagger learns every answer right after its estimate, in the order of
    `examples`; else it learns nothing from them. `examples` is not empty.
    """
    quantiles, cpu_s = _estimates(tagger, examples, stream, show)
    result = {
        **score(quantiles, [example.output_tokens for example in examples]).as_json(),
        "cpu_ms": cpu_s * 1e3 / len(examples),
        "count": len(examples),
    }
    if stream:
        result["models"] = _by_model(quantiles, examples)
    return result


def _estimates(
    tagger: Tagger, examples: Sequence[Example], stream: bool, show: Show
) -> tuple[Floats, float]:
    """Quantiles (n, levels), and the CPU seconds that the estimates took, without learning."""
    size = 1 if stream else _BATCH
    parts, cpu_s = [], 0.0
    for start in range(0, len(examples), size):
        window = examples[start : start + size]
        before_s = time.process_time()
        estimates = tagger.estimate(window)
        cpu_s += time.process_time() - before_s
        parts.append(quantiles_of(estimates))
        if stream:
            tagger.observe(window[0])
        show("estimating", start + len(window), len(examples))
    return np.concatenate(parts), cpu_s


def _by_model(quantiles: Floats, examples: Sequence[Example]) -> dict[str, Any]:
    """Per model: the tagger's error and intervals, and the error of its lengths' running median."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, example in enumerate(examples):
        rows[example.model_name].append(row)
    found = {}
    for name, own in rows.items():
        lengths = np.array([examples[row].output_tokens for row in own], dtype=np.float64)
        estimated = quantiles[own]
        settled = len(own) > _SETTLED
        found[name] = {
            "mae": score(estimated, lengths).mae,
            "coverage_after_300": (
                coverage(estimated[_SETTLED:], lengths[_SETTLED:]) if settled else None
            ),
            "running_median_mae": float(np.abs(running_medians(lengths) - lengths).mean()),
        }
    return found


def running_medians(lengths: Floats) -> Floats:
    """For each length, the median of those before it; `PRIOR_TOKENS` for the first."""
    found = np.full(len(lengths), PRIOR_TOKENS)
    seen: list[float] = []
    for i, length in enumerate(lengths.tolist()):
        if seen:
            middle = len(seen) // 2
            found[i] = (seen[middle] + seen[-middle - 1]) / 2.0
        insort(seen, length)
    return found
