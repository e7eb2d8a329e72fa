"""The random draws that generators need; `random.Random(seed)` satisfies it."""

from typing import Protocol


class Draws(Protocol):
    """A seeded source of random numbers, made by the caller."""

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
