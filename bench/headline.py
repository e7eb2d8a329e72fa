"""What the benchmarks found, on the first page: from `results/`, into README.md.

python -m bench.headline
"""

import json
from collections.abc import Callable, Iterator
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.placement.block import settings as given
from bench.placement.block.page import paired_gain
from bench.stats import markdown_table, write_into

ROOT = Path(__file__).resolve().parent.parent
HEADER = ("", "Foretell", "beside it", "more")


def headline(results: Path = ROOT / "bench" / "results") -> str:
    """The table."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
        return found

    return markdown_table(HEADER, list(_rows(read)))


def _rows(read: Callable[[str], dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield _live(read("accuracy_live")["errors"])
    yield _published(read("accuracy"))
    yield _cost(read("predict")["results"])
    yield _capacity(read("reproduce_block")["capacities"])
    yield _lengths(read("length_eval")["sharegpt_val"])


def _live(errors: dict[str, Any]) -> tuple[str, ...]:
    simple = [found["e2e"] for name, found in errors.items() if name != "foretell"]
    best = min(simple, key=lambda error: float(error["median"]))

    def text(error: dict[str, float]) -> str:
        return f"{error['median']:.1%} / {error['p90']:.1%}"

    return (
        "Error of an e2e latency foretold at arrival, median and P90; real vLLM on a CPU",
        text(errors["foretell"]["e2e"]),
        f"{text(best)}: the best of {len(simple)} simple predictors",
        "[accuracy-live](docs/accuracy-live.md)",
    )


def _published(runs: dict[str, Any]) -> tuple[str, ...]:
    ours = [run["profile"]["e2e"]["mean_error"] for run in runs.values()]
    theirs = [run["LLMServingSim"]["e2e"] for run in runs.values()]

    def text(errors: list[float]) -> str:
        return " / ".join(f"{error:+.1%}" for error in errors)

    return (
        "Error of the mean e2e latency, three published GPU runs",
        text(ours),
        f"{text(theirs)}: LLMServingSim",
        "[accuracy](docs/accuracy.md)",
    )


def _cost(sizes: list[dict[str, Any]]) -> tuple[str, ...]:
    found = next(
        size
        for size in sizes
        if (size["running"], size["waiting"], size["async_scheduling"]) == (48, 50, True)
    )
    return (
        "CPU time of one prediction, 48 running and 50 waiting requests",
        f"{found['kernel_us_p50']:.0f} µs",
        "45 to 63 ms: the Block artifact",
        "[predict](bench/overhead/results/predict.md)",
    )


def _capacity(capacities: list[dict[str, Any]]) -> tuple[str, ...]:
    setting = given.DEFAULT
    gains = paired_gain(capacities, setting.name, given.BLOCK.title, given.LLUMNIX.title)
    return (
        "Capacity that predicting adds to 12 GPUs, over balancing free memory (simulated)",
        f"{exp(fmean(map(log, gains))) - 1:+.1%}",
        f"{setting.paper_gain:+.1%}: the Block paper",
        "[placement](docs/placement.md)",
    )


def _lengths(found: dict[str, Any]) -> tuple[str, ...]:
    baselines = found["baselines"]
    return (
        "Error of an answer's length foretold from its prompt, mean, ShareGPT",
        f"{found['mae']:.0f} tokens",
        f"{baselines['tfidf_ridge']['mae']:.0f}: TF-IDF and ridge regression; "
        f"{baselines['constant_median']['mae']:.0f}: the median",
        "[length-tagger](docs/length-tagger.md)",
    )


if __name__ == "__main__":
    write_into(ROOT / "README.md", "headline", headline())
