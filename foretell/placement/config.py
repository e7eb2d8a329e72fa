"""The parameters of placement that do not depend on the policy."""

from dataclasses import dataclass

STALE_LOAD_S = 10.0
"""Age beyond which a known load is no longer used."""


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Limits on waiting, attempts and candidates.

    Raises ValueError for values out of range.
    """

    candidates: int = 16
    """The most instances that a placement compares (`foretell.policy.shortlist`); 0: all."""
    max_attempts: int = 3
    """The number of failed attempts after which a request is refused."""
    retry_pause_s: float = 0.05
    """Pause before the second attempt; the pause before the third is twice as long, and so on."""
    instance_wait_s: float = 0.0
    """Longest wait for an instance if none that serves the request is up; 0: no wait."""

    def __post_init__(self) -> None:
        least = {"candidates": 0, "max_attempts": 1}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not value >= least.get(name, 0):
                raise ValueError(f"{name} must be at least {least.get(name, 0)}, got {value}")
