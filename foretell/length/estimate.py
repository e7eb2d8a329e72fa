"""Arithmetic on length estimates."""

from collections.abc import Callable
from dataclasses import replace

from foretell.model import LengthEstimate, RequestState

OVERRUN_TOKENS = 10.0
"""What a request that has outlived its estimate is still expected to generate (Block)."""


def from_hint(hint_tokens: int) -> LengthEstimate:
    """The client's own estimate, taken at its word; raises `ValueError` unless positive."""
    if hint_tokens <= 0:
        raise ValueError(f"hint_tokens must be positive, got {hint_tokens}")
    return LengthEstimate(expected_tokens=float(hint_tokens), source="hint")


def clip(estimate: LengthEstimate, max_tokens: int) -> LengthEstimate:
    """`estimate` with no figure above `max_tokens`; 0 means that there is no limit.

    The mean is only cut, which leaves it too high where much of the distribution lies beyond the
    limit. `LengthHistory.estimate` knows the distribution and takes the limit itself.
    """
    if max_tokens <= 0:
        return estimate
    return replace(
        estimate,
        expected_tokens=min(estimate.expected_tokens, float(max_tokens)),
        quantiles=tuple((q, min(tokens, float(max_tokens))) for q, tokens in estimate.quantiles),
    )


def remaining(expected_tokens: float, generated: int) -> float:
    """Tokens still expected of a live request that has `generated` tokens; positive.

    Block's rule ("Block: Balancing Load in LLM Serving with Context, Knowledge and Predictive
    Scheduling"): a request that has reached its estimate is expected to end at
    `generated + OVERRUN_TOKENS`.
    """
    left = expected_tokens - generated
    return left if left > 0 else OVERRUN_TOKENS


def expected_output(prior_tokens: float) -> Callable[[RequestState], float]:
    """Total output tokens to expect of a live request: its own prediction, else `prior_tokens`."""

    def expect(state: RequestState) -> float:
        total = state.predicted_output_tokens or prior_tokens
        return state.output_tokens + remaining(total, state.output_tokens)

    return expect
