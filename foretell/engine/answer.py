"""Quantiles and TPOT of predictions, computed from forecasts."""

from math import inf

import numpy as np

from foretell.engine.questions import Values, quantile

QUANTILE_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Levels of the quantiles of predicted latencies."""
Quantiles = tuple[tuple[float, float], ...]
"""(level in (0, 1), seconds), ascending in level."""
_LEAST_FACTOR = 1e-6  # above 0, so that an infinite latency stays infinite
_NORMAL_FIFTHS = np.array(((-1.400,), (-0.532,), (0.0,), (0.532,), (1.400,)))
"""Means of the five equally likely parts of a standard normal distribution."""


def tpot_s(ttft_s: float, e2e_s: float, output_tokens: float) -> float:
    """Mean seconds of a token after the first; 0 where there is none."""
    if output_tokens <= 1:
        return 0.0
    return (e2e_s - ttft_s) / (output_tokens - 1) if e2e_s < inf else inf


def latency_quantiles(values: Values, error: float, delay_s: float) -> Quantiles:
    """Quantiles of equally likely values plus `delay_s`; each value has a normal error with the
    relative standard deviation `error`."""
    if values.size == 1 and not error:
        value = float(values.item()) + delay_s
        return tuple([(level, value) for level in QUANTILE_LEVELS])
    values = values.ravel()
    if error > 0:
        values = (np.maximum(_LEAST_FACTOR, 1.0 + error * _NORMAL_FIFTHS) * values).ravel()
    ordered: list[float] = np.sort(values).tolist()
    return tuple([(level, quantile(ordered, level) + delay_s) for level in QUANTILE_LEVELS])
