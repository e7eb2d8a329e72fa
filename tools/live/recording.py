"""What one measurement has seen: every request's moments and its prediction."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Served:
    """One request: what was asked, what was predicted, what happened. Moments on the wall clock."""

    prompt_tokens: int
    output_tokens: int
    measured: bool
    """False for requests that warm up engine and predictors."""
    decided_unix_s: float
    """When the prediction had come and the request was sent; latencies count from here."""
    first_unix_s: float
    last_unix_s: float
    predicted_ttft_s: float
    """What the predictor said; infinite: never."""
    predicted_e2e_s: float
    answer_delay_s: float = 0.0
    """What a scheduler would have added to both: the answer's way back, as learned until then."""
    expected_tokens: float = 0.0
    """What was expected of its length then; 0: its length was known."""

    @property
    def ttft_s(self) -> float:
        return self.first_unix_s - self.decided_unix_s

    @property
    def e2e_s(self) -> float:
        return self.last_unix_s - self.decided_unix_s

    @property
    def tpot_s(self) -> float:
        """Mean time of a token after the first."""
        return (self.last_unix_s - self.first_unix_s) / max(1, self.output_tokens - 1)

    @property
    def predicted_tpot_s(self) -> float:
        """What the two predictions and the expected length say of it."""
        tokens = self.expected_tokens or float(self.output_tokens)
        return (self.predicted_e2e_s - self.predicted_ttft_s) / max(1.0, tokens - 1.0)


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole measurement."""

    about: dict[str, Any]
    requests: list[Served]
    """In order of their predictions."""
