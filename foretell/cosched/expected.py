"""Which online requests an engine expects at any moment: such as came lately."""

from math import inf

ONLINE_FOR_S = 300.0
"""So long after its last online request an engine expects another at any moment."""


class ExpectedOnline:
    """Follows the online requests that come to one engine."""

    def __init__(self) -> None:
        self._until_s = self._untold_until_s = -inf
        self._ttft_s = inf

    def came(self, ttft_s: float, now_s: float) -> None:
        """One came that asks for this TTFT, `inf` where it asks for none; `now_s` never goes back.

        What was asked for is forgotten once nobody has come for `ONLINE_FOR_S`.
        """
        if now_s > self._until_s:
            self._ttft_s = inf
        self._until_s = now_s + ONLINE_FOR_S
        self._ttft_s = min(self._ttft_s, ttft_s)
        if ttft_s == inf:
            self._untold_until_s = self._until_s

    def ttft_s(self, now_s: float) -> float:
        """What `foretell.model.EngineSnapshot.online_ttft_s` says: the least TTFT asked for.

        0 where some asked for none, infinite where nobody is expected.
        """
        if now_s > self._until_s:
            return inf
        return 0.0 if now_s <= self._untold_until_s else self._ttft_s
