"""How the time is shared among the stages."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foretell.tools.check.options import Stage

_SHARES: dict[Stage, float] = {
    "attach": 0.05,
    "cost": 0.12,
    "truth": 0.28,
    "cluster": 0.38,
    "beside": 0.17,
}
"""Each stage's share of the time. Later stages share what earlier ones did not use."""
_LEAST_S: dict[Stage, float] = {"attach": 3, "cost": 6, "truth": 15, "cluster": 25, "beside": 15}
"""A stage with less time than this would show nothing and is left out."""
ENDING_RATIO = 0.08
"""The share of the whole time that is kept for ending the engines and for the analysis."""


@dataclass(slots=True)
class Budget:
    """Seconds left of the whole, on the monotonic clock."""

    total_s: float
    clock: Callable[[], float] = time.monotonic
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    @property
    def left_s(self) -> float:
        """Seconds until the whole time is over."""
        return self.total_s - (self.clock() - self.began_s)

    def share_s(self, stage: Stage, to_come: Sequence[Stage]) -> float:
        """Seconds for `stage` if the stages `to_come` follow it; 0 if too few are left."""
        usable_s = self.left_s - ENDING_RATIO * self.total_s
        weights = sum(_SHARES[each] for each in (stage, *to_come))
        own_s = usable_s * _SHARES[stage] / weights
        return own_s if own_s >= _LEAST_S[stage] else 0.0
