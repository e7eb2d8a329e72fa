"""Endless streams of arrival times in seconds, ascending from 0."""

from collections.abc import Iterator
from typing import Protocol


class Draws(Protocol):
    """The random draws that generators need: `random.Random(seed)`, made by the caller."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def gauss(self, mu: float, sigma: float) -> float:
        """Normal with mean `mu` and standard deviation `sigma`."""
        ...

    def expovariate(self, lambd: float) -> float:
        """Exponential with rate `lambd`."""
        ...

    def gammavariate(self, alpha: float, beta: float) -> float:
        """Gamma with shape `alpha` and scale `beta`."""
        ...


def poisson(rate_per_s: float, draws: Draws) -> Iterator[float]:
    """Independent arrivals: exponential gaps with mean `1 / rate_per_s`."""
    _check_positive("rate_per_s", rate_per_s)
    now_s = 0.0
    while True:
        now_s += draws.expovariate(rate_per_s)
        yield now_s


def gamma(rate_per_s: float, cv: float, draws: Draws) -> Iterator[float]:
    """Gamma gaps with mean `1 / rate_per_s` and coefficient of variation `cv`.

    `cv` 1 is Poisson, more is bursty, less is regular (shape `1/cv²`, scale `cv²/rate`).
    """
    _check_positive("rate_per_s", rate_per_s)
    _check_positive("cv", cv)
    shape = 1.0 / (cv * cv)
    scale_s = cv * cv / rate_per_s
    now_s = 0.0
    while True:
        now_s += draws.gammavariate(shape, scale_s)
        yield now_s


def _check_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
