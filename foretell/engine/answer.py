"""Predictions as predictors answer them, made of forecasts."""

from collections.abc import Callable
from math import inf

import numpy as np

from foretell.engine.questions import Forecast, Values, quantile
from foretell.model import Load, Prediction

QUANTILE_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Levels of the quantiles that are given of predicted latencies."""
Quantiles = tuple[tuple[float, float], ...]
"""(level in (0, 1), seconds), ascending in level."""
_LEAST_FACTOR = 1e-6  # above 0: what never comes never comes, by whatever factor
_NORMAL_FIFTHS = np.array(((-1.400,), (-0.532,), (0.0,), (0.532,), (1.400,)))
"""Means of the five equally likely parts of a standard normal distribution."""


Spread = Callable[[int], float]
"""The relative standard deviation of the time of so many steps."""


def no_spread(steps: int) -> float:
    """Step times are exactly known."""
    return 0.0


def as_prediction(
    instance_id: str,
    seen: Forecast,
    load: Load,
    *,
    age_s: float,
    spread: Spread,
    calibration_steps: int = 0,
    answer_delay_s: float = 0.0,
    cached_tokens: int = 0,
    approximations: tuple[str, ...] = (),
    with_quantiles: bool = True,
) -> Prediction:
    """The prediction with a forecast's means, and its quantiles with the errors of step times.

    Tokens take `answer_delay_s` from the engine to who asks.
    Without `with_quantiles` the quantiles are left out, which saves time.
    """
    ttft_s, e2e_s = seen.ttft_s + answer_delay_s, seen.e2e_s + answer_delay_s
    ttft_quantiles: Quantiles = ()
    e2e_quantiles: Quantiles = ()
    if with_quantiles:
        error = spread(max(1, seen.steps))
        ttft_quantiles = _quantiles(seen.ttfts_s, error, answer_delay_s)
        e2e_quantiles = _quantiles(seen.e2es_s, error, answer_delay_s)
    added_ttft_s, added_e2e_s = seen.added or (None, None)
    return Prediction(  # by position: this runs for each candidate of each placement
        instance_id,
        ttft_s,
        e2e_s,
        _tpot_s(ttft_s, e2e_s, seen.output_tokens),
        seen.preemptions,
        age_s,
        load,
        calibration_steps,
        ttft_quantiles,
        e2e_quantiles,
        added_ttft_s,
        added_e2e_s,
        cached_tokens,
        approximations,
    )


def _tpot_s(ttft_s: float, e2e_s: float, output_tokens: float) -> float:
    if output_tokens <= 1:
        return 0.0
    return (e2e_s - ttft_s) / (output_tokens - 1) if e2e_s < inf else inf


def _quantiles(values: Values, error: float, delay_s: float) -> Quantiles:
    """Quantiles of equally likely values, each off by an error of that relative deviation, and
    `delay_s` later."""
    if values.size == 1 and not error:
        value = float(values.item()) + delay_s
        return tuple([(level, value) for level in QUANTILE_LEVELS])
    values = values.ravel()
    if error > 0:
        values = (np.maximum(_LEAST_FACTOR, 1.0 + error * _NORMAL_FIFTHS) * values).ravel()
    ordered: list[float] = np.sort(values).tolist()
    return tuple([(level, quantile(ordered, level) + delay_s) for level in QUANTILE_LEVELS])
