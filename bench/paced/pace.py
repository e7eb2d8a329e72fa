"""How long a step of a paced engine has to last, and when its sleep ends."""

from foretell.config import load_profile
from foretell.latency.linear import StepTimeModel
from foretell.latency.tables import profile_step_time
from foretell.model import BatchShape

PROFILE = "A30/Llama-2-7b-hf"
SLOWDOWN_KEY = "foretell_slowdown"
"""The entry of vLLM's `--additional-config` with the factor on the profile's step times."""


def step_time() -> StepTimeModel:
    """The profile's step times, without slowdown."""
    return profile_step_time(load_profile(PROFILE))


class Clock:
    """Computes how long to sleep before a step's tokens may be returned.

    A busy GPU computes steps back to back, which hides the engine's work between two steps if it
    takes less than `hidden_s`. After a longer pause a step begins when it is scheduled.
    """

    def __init__(self, step_time: StepTimeModel, slowdown: float, hidden_s: float = 0.01) -> None:
        self._step_time = step_time
        self._slowdown = slowdown
        self._hidden_s = hidden_s
        self._due_s = 0.0

    def scheduled(self, shape: BatchShape, now_s: float) -> None:
        """A step of `shape` was scheduled at `now_s`; a step without tokens lasts no time."""
        if shape.tokens == 0:
            return
        begun_s = self._due_s if now_s - self._due_s < self._hidden_s else now_s
        self._due_s = begun_s + self._slowdown * self._step_time.step_s(shape)

    def rest_s(self, now_s: float) -> float:
        """Seconds from `now_s` to the end of the last scheduled step; 0 if that is past."""
        return max(0.0, self._due_s - now_s)
