"""How many joint samples of lengths a prediction needs, by how they are drawn."""

import heapq
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.length.workloads import Floats, Ints, Workload, history_estimates, observe_live
from foretell.kernel.jit import compiled
from foretell.kernel.lengths import conditional_mean, conditional_quantile, draw_totals
from foretell.length.distribution import LengthRule, knots
from foretell.model import LengthEstimate

RUNNING, WAITING = 48, 50  # and the newcomer
SAMPLES = (1, 2, 4, 8)
_ENGINES = 5
_DRAWS = 1600  # of each engine, design and number of samples
_TRUE_DRAWS = 8000
_REPEATS, _CALLS = 50, 200
NAMES = ("all tokens", "5th to end", "24th to end", "newcomer starts", "newcomer ends")

Draw = Callable[[Floats, Ints, int, int, np.random.Generator], Ints]
"""(rows, generated, samples, seed, rng) -> totals, (samples, n)."""


@compiled
def _totals_at(rows: Floats, generated: Ints, levels: Floats, totals: Ints) -> None:
    for s in range(levels.shape[0]):
        for i in range(levels.shape[1]):
            tokens = conditional_quantile(rows[i], float(generated[i]), levels[s, i])
            totals[s, i] = max(generated[i] + 1, round(tokens))


def _at(rows: Floats, generated: Ints, levels: Floats) -> Ints:
    totals = np.zeros(levels.shape, np.int64)
    _totals_at(rows, generated, levels, totals)
    return totals


def _independent(
    rows: Floats, generated: Ints, samples: int, _seed: int, rng: np.random.Generator
) -> Ints:
    return _at(rows, generated, rng.random((samples, len(rows))))


def _over_requests(
    rows: Floats, generated: Ints, samples: int, _seed: int, rng: np.random.Generator
) -> Ints:
    """In each sample a permutation of (i + 0.5) / n, every other one mirrored."""
    n = len(rows)
    levels = np.array([(rng.permutation(n) + 0.5) / n for _ in range(samples)])
    levels[1::2] = 1 - levels[: samples - samples % 2 : 2]
    return _at(rows, generated, levels)


def _over_samples(
    rows: Floats, generated: Ints, samples: int, seed: int, _rng: np.random.Generator
) -> Ints:
    totals = np.zeros((samples, len(rows)), np.int64)
    draw_totals(rows, generated, np.arange(len(rows)), seed, totals)
    return totals


DESIGNS: dict[str, Draw] = {
    "independent": _independent,
    "stratified over requests": _over_requests,
    "stratified over samples (shipped)": _over_samples,
}


def engine(workload: Workload, rng: np.random.Generator) -> tuple[list[LengthEstimate], Ints]:
    """A history's estimates, and tokens generated, of the requests of a full engine."""
    live = observe_live(workload.evaluated, RUNNING, rng)
    waiting = workload.evaluated.take(rng.choice(len(workload.evaluated), WAITING + 1))
    prompts = np.concatenate([live.requests.prompt, waiting.prompt])
    generated = np.concatenate([live.generated, np.zeros(WAITING + 1, np.int64)])
    return history_estimates(workload, prompts), generated


def _rows(estimates: list[LengthEstimate], rule: LengthRule) -> Floats:
    return np.array([knots(estimate, rule) for estimate in estimates])


def _means(rows: Floats, generated: Ints) -> Ints:
    """One sample, (1, n), in which every length is its mean."""
    means = [conditional_mean(row, float(g)) for row, g in zip(rows, generated, strict=True)]
    return np.rint([means]).astype(np.int64)


def outcome(totals: Ints, generated: Ints) -> Floats:
    """`NAMES` of one sample, in tokens or steps.

    As if every step gave each running request one token and waiting ones took the places of those
    that end, in order; the last request is the newcomer.
    """
    left = (totals - generated).tolist()
    ends = sorted(left[:RUNNING])
    places = ends.copy()  # sorted, so a heap
    for tokens in left[RUNNING:-1]:
        heapq.heapreplace(places, places[0] + tokens)
    start = places[0]
    return np.array([sum(left), ends[4], ends[23], start, start + left[-1]], np.float64)


def compare(workload: Workload, rng: np.random.Generator) -> dict[str, Any]:
    """Per design and number of samples: errors of the samples' mean, and their spread.

    Both over the standard deviation of the true outcome: `error` is the root mean square over
    engines and seeds, `spread` the standard deviation of single samples around their truth.
    """
    found: dict[str, list[tuple[Floats, Floats]]] = {}
    for _ in range(_ENGINES):
        estimates, generated = engine(workload, rng)
        rows = _rows(estimates, "survival")
        true = _outcomes(_independent(rows, generated, _TRUE_DRAWS, 0, rng), generated)
        mean, sigma = true.mean(axis=0), true.std(axis=0)
        for name, draw in DESIGNS.items():
            for samples in SAMPLES:
                drawn = np.array(
                    [
                        _outcomes(draw(rows, generated, samples, seed, rng), generated)
                        for seed in range(_DRAWS // samples)
                    ]
                )
                errors = (drawn.mean(axis=1) - mean) / sigma
                spread = drawn.reshape(-1, len(NAMES)).std(axis=0) / sigma
                found.setdefault(f"{name}, {samples}", []).append(
                    ((errors**2).mean(axis=0), spread)
                )
        for name, points in (
            ("every length its mean", rows),
            ("every length by Block's rule", _rows(estimates, "block")),
        ):
            errors = (_outcomes(_means(points, generated), generated)[0] - mean) / sigma
            found.setdefault(name, []).append((errors**2, 0 * errors))
    return {
        name: {
            "error": _named(np.sqrt(np.mean([square for square, _ in engines], axis=0))),
            "spread": _named(np.mean([spread for _, spread in engines], axis=0)),
        }
        for name, engines in found.items()
    }


def _outcomes(totals: Ints, generated: Ints) -> Floats:
    return np.array([outcome(sample, generated) for sample in totals])


def _named(values: Floats) -> dict[str, float]:
    return {name: round(float(value), 3) for name, value in zip(NAMES, values, strict=True)}


def cost(workload: Workload, rng: np.random.Generator) -> dict[str, float]:
    """Microseconds of one call each: the least of `_REPEATS` means, as others use the machine."""
    estimates, generated = engine(workload, rng)
    rows = _rows(estimates, "survival")
    keys = np.arange(len(rows))
    found = {"knots, of an estimate with quantiles": _least_us(lambda _: knots(estimates[0]))}
    for samples in SAMPLES:
        name = f"draw_totals, {len(rows)} requests, samples: {samples}"
        found[name] = _draw_us(rows, generated, keys, samples)
    return found


def _draw_us(rows: Floats, generated: Ints, keys: Ints, samples: int) -> float:
    totals = np.zeros((samples, len(rows)), np.int64)
    return _least_us(lambda seed: draw_totals(rows, generated, keys, seed, totals))


def _least_us(function: Callable[[int], object]) -> float:
    times = []
    for repeat in range(_REPEATS):
        started = time.perf_counter_ns()
        for call in range(_CALLS):
            function(repeat * _CALLS + call)  # seeds anew: branches cannot be learnt by heart
        times.append((time.perf_counter_ns() - started) / _CALLS / 1000)
    return round(min(times), 2)
