"""What an emulated engine that serves offline requests beside online ones knows of the latter."""

from math import inf

from foretell.cosched import BurstReserve
from foretell.cosched.expected import ExpectedOnline
from foretell.engine import Sequence, Twin
from foretell.kernel.offline import OFFLINE_PRIORITY

_RESERVE_EVERY_S = 0.1


class OnlineWatch:
    """Tells the twin which online requests to expect, as `vllm.cosched.step` knows it of vLLM."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._expected, self._reserve = ExpectedOnline(), BurstReserve()
        self._reserve_due_s = 0.0

    def came(self, sequence: Sequence, now_s: float) -> None:
        """A request is about to be queued."""
        if sequence.priority != OFFLINE_PRIORITY:
            self._expected.came(sequence.targets_s[0] or inf, now_s)

    def tell(self, now_s: float) -> None:
        """A step is about to be scheduled."""
        if now_s >= self._reserve_due_s:
            self._reserve_due_s = now_s + _RESERVE_EVERY_S
            online = [each for each in self._twin.running if each.priority != OFFLINE_PRIORITY]
            self._reserve.observe(sum(each.blocks for each in online), now_s)
        self._twin.expect_online(self._expected.ttft_s(now_s), self._reserve.usual_blocks)
