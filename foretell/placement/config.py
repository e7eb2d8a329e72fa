"""The parameters of placement that no policy owns."""

from dataclasses import dataclass

STALE_LOAD_S = 10.0
"""Age beyond which a load that a predictor once reported says nothing."""


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Limits on waiting, attempts and candidates.

    Raises ValueError for values out of range.
    """

    candidates: int = 16
    """Instances compared for one placement at most (`foretell.policy.shortlist`); 0: all."""
    max_attempts: int = 3
    """Instances tried for one request before its first token."""
    retry_pause_s: float = 0.05
    """Pause before the second attempt; before the third it is twice as long, and so on."""
    instance_wait_s: float = 0.0
    """Longest wait for an instance where none that serves a request's model is up; 0: none."""

    def __post_init__(self) -> None:
        least = {"candidates": 0, "max_attempts": 1}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not value >= least.get(name, 0):
                raise ValueError(f"{name} must be at least {least.get(name, 0)}, got {value}")
