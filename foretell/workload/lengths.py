"""Lengths of requests: prompt and output tokens, drawn together."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Protocol

from foretell.workload.arrivals import Draws


class LengthSampler(Protocol):
    """A distribution of (prompt, output) tokens."""

    def sample(self, draws: Draws) -> tuple[int, int]:
        """Prompt and output tokens of one request, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal number of tokens, rounded and clipped to [1, `most`].

    `mean` and `cv` (standard deviation / mean) are those before clipping.
    """

    mean: float
    cv: float
    most: int

    def __post_init__(self) -> None:
        if self.mean <= 0 or self.cv < 0 or self.most < 1:
            raise ValueError(f"need mean > 0, cv >= 0 and most >= 1, got {self}")

    def sample(self, draws: Draws) -> int:
        """One number of tokens."""
        variance = log(1.0 + self.cv * self.cv)
        mu = log(self.mean) - variance / 2
        exponent = draws.gauss(mu, sqrt(variance))
        # The limit is applied to the exponent, because exp() would overflow on an extreme draw.
        if exponent >= log(self.most):
            return self.most
        return max(1, round(exp(exponent)))


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Prompt and output lengths, log-normal and independent."""

    prompt: LogNormal
    output: LogNormal

    def sample(self, draws: Draws) -> tuple[int, int]:
        """Prompt and output tokens of one request."""
        return self.prompt.sample(draws), self.output.sample(draws)


@dataclass(frozen=True, slots=True)
class EmpiricalLengths:
    """Pairs from a trace, all equally likely; this keeps the correlation of the two lengths."""

    pairs: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError("need at least one (prompt, output) pair")
        for prompt_tokens, output_tokens in self.pairs:
            if prompt_tokens < 1 or output_tokens < 1:
                raise ValueError(f"lengths must be positive: {(prompt_tokens, output_tokens)}")

    def sample(self, draws: Draws) -> tuple[int, int]:
        """One of `pairs`."""
        return self.pairs[int(draws.random() * len(self.pairs))]
