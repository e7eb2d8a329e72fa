"""Arithmetic on length estimates."""

import math

from foretell.model import LengthEstimate


def from_hint(hint_tokens: int) -> LengthEstimate:
    """The client's own estimate, taken at its word; raises `ValueError` unless positive."""
    if hint_tokens <= 0:
        raise ValueError(f"hint_tokens must be positive, got {hint_tokens}")
    return LengthEstimate(expected_tokens=float(hint_tokens), source="hint")


def clip(estimate: LengthEstimate, max_tokens: int, min_tokens: int = 0) -> LengthEstimate:
    """`estimate` with no figure above `max_tokens`, 0 for no limit, or below `min_tokens`.

    The mean is only cut, which leaves it wrong where much of the distribution lies beyond a bound.
    `LengthHistory.estimate` knows the distribution and takes the bounds itself.
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
    """Whether a later, better estimate differs enough to be worth telling.

    That is by more than the factor that half of the lengths are within, as the `former` has it: the
    root of the ratio of its quartiles. One without quartiles claims to be exact.
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
