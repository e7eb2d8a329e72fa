"""Predicted against actual latencies of the same requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from foretell.tools.intervals import quantile
from tests.sim.recorded import Latency

METRICS: dict[str, Callable[[Latency], float]] = {
    "ttft": lambda latency: latency.ttft_s,
    "tpot": lambda latency: latency.tpot_s,
    "e2e": lambda latency: latency.e2e_s,
}


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors; the first three are signed, (predicted - actual) / actual."""

    mean_error: float
    """The relative error of the mean."""
    p50_error: float
    """The relative error of the median."""
    p99_error: float
    mape: float
    """Mean of |predicted - actual| / actual over all requests."""
    actual_mean_s: float
    predicted_mean_s: float


def errors(predicted: Sequence[float], actual: Sequence[float]) -> Errors:
    """Errors over requests; ValueError if there is none, or an actual time is not positive."""
    if not actual or min(actual) <= 0:
        raise ValueError("errors are relative to positive times, and there are none")

    def relative(p: float, a: float) -> float:
        return (p - a) / a

    mean_p, mean_a = fmean(predicted), fmean(actual)
    return Errors(
        mean_error=relative(mean_p, mean_a),
        p50_error=relative(quantile(predicted, 0.5), quantile(actual, 0.5)),
        p99_error=relative(quantile(predicted, 0.99), quantile(actual, 0.99)),
        mape=fmean(abs(relative(p, a)) for p, a in zip(predicted, actual, strict=True)),
        actual_mean_s=mean_a,
        predicted_mean_s=mean_p,
    )


def accuracy(predicted: Sequence[Latency], actual: Sequence[Latency]) -> dict[str, Errors]:
    """`Errors` of each of `METRICS`. Requests of one token have no TPOT and are left out of it."""
    pairs = list(zip(predicted, actual, strict=True))
    result = {}
    for name, value in METRICS.items():
        chosen = [(p, a) for p, a in pairs if name != "tpot" or a.output_tokens > 1]
        result[name] = errors([value(p) for p, _ in chosen], [value(a) for _, a in chosen])
    return result
