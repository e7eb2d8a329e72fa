"""How long an engine may be silent before an attempt on it is given up.

An engine may hang and still answer its health probes. Its forecast tells when the first byte of an
answer should have come, so silence of several times that long is a reason to go elsewhere. An
engine that sends anything at all, be it of other answers, does not hang: it is only late.

A stream that has begun is awaited in the same way, where another engine could go on with it.
"""

from dataclasses import dataclass
from math import exp

TIMES = 4.0
"""Silence that is given up, in multiples of the predicted one: forecasts err."""
LEAST_S = 2.0
"""Engines are silent for so long without hanging: they collect garbage or compile for a shape."""
AT_WORK = 4.0
"""An engine that makes steps does not hang, though its answers may be lost on their way: it has so
many times as long for a first byte."""
STREAM_S = 10.0
"""Silence in which a stream that had begun is left alone: its tokens are not predicted one by one,
and to go on elsewhere computes all of them again."""
UNKNOWN_S = 60.0
"""Silence of an engine that has not answered yet since it came up: it loads and compiles."""
_MEMORY_S = 600.0
"""Time constant by which the longest silence seen is forgotten."""


@dataclass(slots=True)
class _Attempt:
    instance_id: str
    since_s: float
    """When it was sent, or began."""
    longest_s: float
    begun: bool = False


class Silences:
    """The attempts that are awaited; pure, time is an argument.

    Without a forecast, and at least, an engine is given as long as first bytes took lately. The
    last attempt of a request is never given up, so what becomes slow everywhere is soon known.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, dict[str, _Attempt]] = {}
        self._where: dict[str, str] = {}
        self._slowest_s, self._slowest_at_s = 0.0, 0.0

    def sent(self, key: str, instance_id: str, predicted_s: float | None, now_s: float) -> None:
        """An attempt begins. Its first byte is predicted after `predicted_s`; None: nobody knows,
        infinite: it may take any time."""
        if predicted_s is None:
            predicted_s = self.usual_s(now_s) or UNKNOWN_S / TIMES
        self._where[key] = instance_id
        attempts = self._attempts.setdefault(instance_id, {})
        attempts[key] = _Attempt(instance_id, now_s, TIMES * predicted_s)

    def began(self, key: str, now_s: float, *, goes_on: bool) -> None:
        """The attempt's first byte has come; `goes_on`: another engine could go on from here."""
        attempt = self._pop(key)
        if attempt is None:
            return
        self._saw(now_s - attempt.since_s, now_s)
        if goes_on:
            self._where[key] = attempt.instance_id
            attempts = self._attempts.setdefault(attempt.instance_id, {})
            attempts[key] = _Attempt(attempt.instance_id, now_s, STREAM_S, begun=True)

    def ended(self, key: str, now_s: float) -> float:
        """Nothing more will come of the attempt; how long its first byte was waited for, 0 where
        that came."""
        attempt = self._pop(key)
        return 0.0 if attempt is None or attempt.begun else now_s - attempt.since_s

    def silent(
        self, instance_id: str, heard_s: float, worked_s: float, now_s: float, *, proven: bool
    ) -> list[str]:
        """The attempts there that have waited too long, given when the last byte came from there
        and when the engine last made a step.

        `proven`: the instance has answered since it came up.
        """
        attempts = self._attempts.get(instance_id)
        if not attempts:
            return []
        least_s = max(LEAST_S if proven else UNKNOWN_S, self.usual_s(now_s))

        def is_late(attempt: _Attempt) -> bool:
            longest_s = max(least_s, attempt.longest_s)
            if not attempt.begun and now_s - worked_s <= longest_s:
                longest_s *= AT_WORK
            return now_s - max(attempt.since_s, heard_s) > longest_s

        return [key for key, attempt in attempts.items() if is_late(attempt)]

    def usual_s(self, now_s: float) -> float:
        """The slowest first byte lately; 0 where none is known."""
        return self._slowest_s * exp((self._slowest_at_s - now_s) / _MEMORY_S)

    def _saw(self, seconds: float, now_s: float) -> None:
        if seconds > self.usual_s(now_s):
            self._slowest_s, self._slowest_at_s = seconds, now_s

    def _pop(self, key: str) -> _Attempt | None:
        instance_id = self._where.pop(key, None)
        if instance_id is None:
            return None
        attempts = self._attempts[instance_id]
        attempt = attempts.pop(key)
        if not attempts:
            del self._attempts[instance_id]
        return attempt
