"""Writes what the benchmarks found, in eight lines, onto the first page (README.md).

python -m bench.headline
"""

from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

from bench.accuracy import published, silicon
from bench.accuracy.silicon_runs import DATASHEET, TABLES
from bench.length import eval as length_eval
from bench.offline import cosched
from bench.overhead import predict
from bench.placement import foretold, reproduce_block, yardstick
from bench.placement.block import settings as given
from bench.placement.block.page import paired_gain
from bench.placement.foretold import best_simple
from bench.report import ROOT, Numbers, markdown_table, write_into
from bench.stats import geometric_mean
from foretell.tools.live.report import FORETELL

HEADER = ("", "Foretell", "beside it", "more")


def headline() -> str:
    """The table."""
    return markdown_table(HEADER, list(_rows()))


def _rows() -> Iterator[tuple[str, ...]]:
    yield _foretold(foretold.BENCH.read()["kinds"])
    yield _published(published.BENCH.read()["runs"])
    yield _devices(silicon.BENCH.read()["runs"])
    yield _cost(predict.BENCH.read()["results"])
    yield _capacity(reproduce_block.BENCH.read()["capacities"])
    yield _tail(yardstick.BENCH.read())
    yield _lengths(length_eval.BENCH.read()["sharegpt_val"])
    yield _offline(cosched.BENCH.read()["runs"])


def _foretold(kinds: dict[str, Any]) -> tuple[str, ...]:
    def text(kind: str, name: str) -> str:
        error = kinds[kind]["errors"]["e2e"][name]
        return f"{error['median']:.0%} / {error['p90']:.0%}"

    def both(hidden: str, hinted: str) -> str:
        return f"{text('hidden', hidden)} ({text('hinted', hinted)})"

    simple = [best_simple(kinds[kind]["errors"]["e2e"]) for kind in ("hidden", "hinted")]
    return (
        "Error of an e2e latency, median and P90; four real vLLM engines at a GPU's pace, lengths "
        "estimated (told)",
        both(FORETELL, FORETELL),
        f"{both(*simple)}: the best simple predictor",
        "[foretold](bench/placement/foretold.md)",
    )


def _published(runs: dict[str, Any]) -> tuple[str, ...]:
    looked_at = [run for run in runs.values() if run["looked_at"]]
    ours = [run["profile"]["e2e"]["mean_error"] for run in looked_at]
    theirs = [run["LLMServingSim"]["e2e"] for run in looked_at]

    def text(errors: list[float]) -> str:
        return " / ".join(f"{error:+.1%}" for error in errors)

    return (
        "Error of the mean e2e latency, published GPU runs that were looked at, true lengths",
        text(ours),
        f"{text(theirs)}: LLMServingSim",
        "[published runs](bench/accuracy/published.md)",
    )


def _devices(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    unseen = [row for row in runs if not row["learnt_from"]]
    of_tables = [row for row in unseen if row["source"] == TABLES]
    devices = [row["devices"] for row in of_tables]

    def text(rows: list[dict[str, Any]]) -> str:
        errors = silicon.errors(rows, "tpot_s")
        return f"{fmean(errors):+.1%} / {fmean(map(abs, errors)):.1%}"

    return (
        f"Error of a mean TPOT, mean and size, {len(of_tables)} published runs on "
        f"{min(devices)} to {max(devices)} GPUs, true lengths",
        text(of_tables),
        f"{text([row for row in unseen if row['source'] == DATASHEET])}: the datasheet",
        "[several GPUs](bench/accuracy/silicon.md)",
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
        "[predict](bench/overhead/predict.md)",
    )


def _capacity(capacities: list[dict[str, Any]]) -> tuple[str, ...]:
    setting = given.DEFAULT
    gains = paired_gain(capacities, setting.name, given.BLOCK.title, given.LLUMNIX.title)
    return (
        "Capacity that predicting adds to 12 GPUs, over balancing free memory (simulated, "
        "true lengths)",
        f"{geometric_mean(gains) - 1:+.1%}",
        f"{setting.paper_gain:+.1%}: the Block paper",
        "[Block's evaluation](bench/placement/reproduce_block.md)",
    )


def _tail(page: Numbers) -> tuple[str, ...]:
    def text(policy: str) -> str:
        ratios = [
            geometric_mean(
                yardstick.ratios_of(page, family, "tagger", policy, yardstick.SIMPLE, "ttft_p99_s")
            )
            for family in page["capacities_qps"]
        ]
        return f"{median(ratios) - 1:+.0%}"

    return (
        "P99 TTFT beside the best policy that predicts nothing, median of "
        f"{len(page['capacities_qps'])} kinds of traffic (simulated, estimated lengths, placing "
        "takes its time)",
        text("slo"),
        f"{text('predicted_latency')}: Block's policy",
        "[yardstick](bench/placement/yardstick.md)",
    )


def _offline(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    def text(contender: str) -> str:
        own = [r for r in runs if (r["load"], r["contender"]) == (cosched.LOADS[0], contender)]
        per_s, met = (fmean(one[name] for one in own) for name in ("offline_per_s", "met"))
        return f"{per_s:.1f} ({met:.0%})"

    return (
        "Offline requests/s beside online ones on one GPU, and online targets met; vLLM's own "
        "scheduler, virtual time",
        text("ours, with targets"),
        f"{text('BS')}: vLLM's policy `priority`",
        "[co-scheduling](bench/offline/cosched.md)",
    )


def _lengths(found: dict[str, Any]) -> tuple[str, ...]:
    baselines = found["baselines"]
    return (
        "Error of an answer's length predicted from its prompt, mean, ShareGPT",
        f"{found['mae']:.0f} tokens",
        f"{baselines['tfidf_ridge']['mae']:.0f}: TF-IDF and ridge regression; "
        f"{baselines['constant_median']['mae']:.0f}: the median",
        "[length model](bench/length/eval.md)",
    )


if __name__ == "__main__":
    write_into(ROOT / "README.md", "headline", headline())
