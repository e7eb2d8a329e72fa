"""How well are the lengths of live requests known, by what is believed of them?

DATA holds `traces/` and `text/` with real prompt and output lengths. What the representation was
chosen by is scored on other requests than the results are.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from bench.length import choices as length_choices
from bench.length import samples as length_samples
from bench.length.scores import HEADER, Score, cells, predict, score, score_points
from bench.length.workloads import Floats, Live, Workload, history_estimates, load, observe_live
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.length import PRIOR_TOKENS
from foretell.length.distribution import SPREAD_SIGMA, knots, log_normal
from foretell.model import LengthEstimate

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="3 minutes",
    paths={"DATA": "folder with traces/ and text/"},
)
SEED = 1
LIVE = 20_000  # requests observed of each part


def evaluate(workload: Workload, live: Live, rng: np.random.Generator) -> dict[str, Score]:
    """Every source of estimates under every rule."""
    noisy = length_choices.noisy(live.requests, rng)
    calibrated = length_choices.calibrated(noisy, workload, rng)
    sources = {
        "prior": [LengthEstimate(PRIOR_TOKENS, source="prior")] * len(live.generated),
        "history": history_estimates(workload, live.requests.prompt),
        "noisy truth": _by_model(noisy),
        "calibrated noise": _by_model(calibrated),
    }
    if live.requests.guessed is not None:
        sources["bag of words"] = _by_model(live.requests.guessed)
    found = {}
    for source, estimates in sources.items():
        for rule, figures in _by_rule(estimates, live).items():
            found[f"{source}, {rule}"] = figures
    unit = np.array(log_normal(1.0, length_choices.NOISE_SIGMA))
    fitting = predict(calibrated[:, None] * unit, live.generated)
    found[f"calibrated noise, survival, sigma {length_choices.NOISE_SIGMA}"] = score(*fitting, live)
    return found


def _by_model(tokens: Floats) -> list[LengthEstimate]:
    return [LengthEstimate(float(expected), source="model") for expected in tokens]


def _by_rule(estimates: Sequence[LengthEstimate], live: Live) -> dict[str, Score]:
    believed = np.array([estimate.expected_tokens for estimate in estimates])
    never_updated = np.maximum(believed, live.generated + 1.0)
    found = {"never updated": score_points(never_updated, live)}
    for rule in ("block", "survival"):
        rows = np.array([knots(estimate, rule) for estimate in estimates])
        found[rule] = score(*predict(rows, live.generated), live)
    return found


def choose(workload: Workload, live: Live, rng: np.random.Generator) -> Numbers:
    """Scores of what could have been chosen."""
    noisy = length_choices.noisy(live.requests, rng)
    sigmas = {"calibrated noise": length_choices.calibrated(noisy, workload, rng)}
    if live.requests.guessed is not None:
        sigmas["bag of words"] = live.requests.guessed
    return {
        "interpolation": length_choices.by_interpolation(workload, live),
        "tail": length_choices.by_tail(workload, live),
        "sigma": {
            f"{source}, {sigma}": figures
            for source, tokens in sigmas.items()
            for sigma, figures in length_choices.by_sigma(tokens, live).items()
        },
    }


def measure(options: argparse.Namespace) -> Numbers:
    """Score all sources of estimates, and what could have been chosen, on every workload."""
    rng = np.random.default_rng(SEED)
    workloads = load(options.data, rng)
    result: Numbers = {"sigma": SPREAD_SIGMA, "live": LIVE, "workloads": {}}
    for workload in workloads:
        result["workloads"][workload.name] = {
            "requests": [len(part) for part in workload[1:]],
            "choices": choose(workload, observe_live(workload.chosen_by, LIVE, rng), rng),
            "results": evaluate(workload, observe_live(workload.evaluated, LIVE, rng), rng),
        }
    result["samples"] = length_samples.compare(workloads[0], rng)
    result["cost_us"] = length_samples.cost(workloads[0], rng)
    return result


def tables(result: Numbers) -> Blocks:
    """Tables for each workload, and those of joint samples."""
    lines = [
        made_by(result),
        f"{LIVE} requests of each part, seen at a random moment of their decoding. Tokens; bias is "
        "predicted - actual, pinball the mean loss over levels 0.05 to 0.95, batch of 48 the mean "
        "absolute error of the tokens that 48 requests have left, together.\n",
    ]
    for name, found in result["workloads"].items():
        lines.append(f"### {name}\n")
        lines.append(
            "Learnt from, chosen by, evaluated on: {}, {}, {} requests.\n".format(
                *found["requests"]
            )
        )
        tables = {"results": found["results"], **found["choices"]}
        for title, rows in tables.items():
            header = (title, *HEADER)
            lines.append(
                markdown_table(header, [(row, *cells(figures)) for row, figures in rows.items()])
            )
    lines.append("### Joint samples\n")
    for figure in ("error", "spread"):
        lines.append(
            markdown_table(
                (f"{figure} / sigma", *length_samples.NAMES),
                [(row, *figures[figure].values()) for row, figures in result["samples"].items()],
            )
        )
    lines.append(markdown_table(("cost", "microseconds"), result["cost_us"].items()))
    return {"tables": "\n".join(lines)}


if __name__ == "__main__":
    BENCH.main(measure, tables)
