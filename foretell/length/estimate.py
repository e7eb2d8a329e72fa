"""Arithmetic on length estimates."""

import math

from foretell.model import LengthEstimate


def from_hint(hint_tokens: int) -> LengthEstimate:
    """The client's own estimate, taken as exact; `ValueError` unless it is positive."""
    if hint_tokens <= 0:
        raise ValueError(f"hint_tokens must be positive, got {hint_tokens}")
    return LengthEstimate(expected_tokens=float(hint_tokens), source="hint")


def clip(estimate: LengthEstimate, max_tokens: int, min_tokens: int = 0) -> LengthEstimate:
    """`estimate` with mean and quantiles clipped to `min_tokens` and `max_tokens`, 0 for no limit.

    The clipped mean is wrong if much of the distribution lies beyond a bound.
    `LengthHistory.estimate` knows the distribution and applies the bounds itself.
    """
    if max_tokens <= 0 and min_tokens <= 0:
        return estimate
    most, least = float(max_tokens) if max_tokens > 0 else math.inf, float(min_tokens)
    if not estimate.quantiles and least <= estimate.expected_tokens <= most:
        return estimate
    return estimate._replace(
        expected_tokens=min(max(estimate.expected_tokens, least), most),
        quantiles=tuple((q, min(max(tokens, least), most)) for q, tokens in estimate.quantiles),
    )


def says_more(later: LengthEstimate, former: LengthEstimate) -> bool:
    """Whether a later, better estimate differs enough from the `former` to be worth sending.

    The threshold is a factor within which half of the lengths lie according to the `former`: the
    square root of the ratio of its quartiles. An estimate without quartiles counts as exact.
    """
    quantiles = dict(former.quantiles)
    low, high = quantiles.get(0.25, 1.0), quantiles.get(0.75, 1.0)
    ratio = max(later.expected_tokens, 1.0) / max(former.expected_tokens, 1.0)
    return max(ratio, 1.0 / ratio) ** 2 > high / max(low, 1.0)


def level_of(estimate: LengthEstimate, tokens: float) -> float | None:
    """The lowest level whose quantile a length of `tokens` does not exceed; 1.0 beyond the last.

    None for an estimate without quantiles.
    """
    if not estimate.quantiles:
        return None
    return next((level for level, most in estimate.quantiles if tokens <= most), 1.0)
