"""The limits of an engine that does not publish its configuration, as far as they can be seen."""

from collections import deque
from dataclasses import dataclass

from foretell.model import EngineConfig
from foretell.model.limits import NO_LIMITS, Limits

OBSERVED = "observed from outside"
"""Among the approximations of every engine that is observed."""
TELL_EVERY_S = 0.1
"""How often observers tell what they have seen."""
_LOOKS, LOOK_EVERY_S = 3, 0.5
"""Requests must wait at so many looks for those who run to count as all that may."""
ASSUMED = Limits(256, 8192, 32_768, 16)
"""Of engines that say nothing: vLLM's defaults on large GPUs (vllm/engine/arg_utils.py, 0.32)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an engine says of itself in its metrics."""

    running: int
    waiting: int
    limits: Limits = NO_LIMITS
    run: str = ""
    """Another one when the engine has started again."""


class SeenLimits:
    """What is stated counts first, then what the engine says, what is seen, and what is assumed."""

    def __init__(self, given: Limits) -> None:
        """`given`: the limits that somebody stated."""
        self.found = NO_LIMITS
        """What the engine says."""
        self.seats = 0
        """Requests that were seen to be as many as may run; 0: nothing was seen."""
        self._given = given
        self._looks: deque[tuple[int, bool]] = deque(maxlen=_LOOKS)
        self._looked_s = 0.0

    def forget(self) -> None:
        """The engine has started again."""
        self.seats, self.found = 0, NO_LIMITS
        self._looks.clear()

    def weigh(self, running: int, waits: bool, at_s: float) -> None:
        """Who runs while others wait is as many as may run."""
        if at_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = at_s
        self._looks.append((running, waits))
        if len(self._looks) == _LOOKS and all(waits for _, waits in self._looks):
            self.seats = max(self.seats, *(running for running, _ in self._looks))

    def config(self) -> EngineConfig:
        """The configuration that the twin runs by."""
        seen = Limits(max_num_seqs=self.seats)
        known = self._given.beside(self.found).beside(seen).beside(ASSUMED)
        seats = max(known.max_num_seqs, self.seats)
        most = -(-known.max_model_len // known.block_size_tokens)
        return EngineConfig(
            model_name="",
            block_size_tokens=known.block_size_tokens,
            total_blocks=known.total_blocks or seats * most,
            max_num_seqs=seats,
            max_num_scheduled_tokens=known.max_num_batched_tokens,
            max_model_len=known.max_model_len,
            told_within_s=5 * TELL_EVERY_S,
            approximations=(OBSERVED,),
        )
