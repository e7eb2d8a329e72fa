"""How long an engine may be silent before an attempt on it is given up.

An engine may hang and still answer its health probes. Its forecast says when the first byte of an
answer should come; an attempt is given up after several times as long. An engine that sends
anything, even bytes of other answers, does not hang; it is only late.

The same holds for a stream that has begun, if another engine could continue it.
"""

from dataclasses import dataclass
from math import exp

TIMES = 4.0
"""Allowed silence in multiples of the predicted one, since forecasts err."""
LEAST_S = 2.0
"""Silence that is always allowed: engines collect garbage, or compile for a new shape."""
AT_WORK = 4.0
"""Factor on the allowed silence before the first byte while the engine runs steps: it does not
hang, although its answers may be lost on their way."""
STREAM_S = 10.0
"""Allowed silence of a stream that has begun: its tokens are not predicted one by one, and the
next engine has to compute all of them again."""
UNKNOWN_S = 60.0
"""Allowed silence of an engine that has not answered since it came up: it loads and compiles."""
_MEMORY_S = 600.0
"""Time constant with which the slowest first byte is forgotten."""


@dataclass(slots=True)
class _Attempt:
    instance_id: str
    since_s: float
    """When it was sent; once it has begun, when it began."""
    longest_s: float
    begun: bool = False


class Silences:
    """The attempts whose next bytes are awaited. Pure: time is an argument.

    The slowest recent first byte is a lower bound of the allowed silence, and replaces a missing
    forecast. The last attempt of a request is never given up, so a slowdown of all engines is soon
    known.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, dict[str, _Attempt]] = {}
        self._where: dict[str, str] = {}
        self._slowest_s, self._slowest_at_s = 0.0, 0.0

    def sent(self, key: str, instance_id: str, predicted_s: float | None, now_s: float) -> None:
        """Add an attempt whose first byte is predicted after `predicted_s`. None: unknown;
        infinite: it may take any time."""
        if predicted_s is None:
            predicted_s = self.usual_s(now_s) or UNKNOWN_S / TIMES
        self._where[key] = instance_id
        attempts = self._attempts.setdefault(instance_id, {})
        attempts[key] = _Attempt(instance_id, now_s, TIMES * predicted_s)

    def began(self, key: str, now_s: float, *, goes_on: bool) -> None:
        """Note the attempt's first byte; `goes_on`: another engine could continue from here."""
        attempt = self._pop(key)
        if attempt is None:
            return
        self._saw(now_s - attempt.since_s, now_s)
        if goes_on:
            self._where[key] = attempt.instance_id
            attempts = self._attempts.setdefault(attempt.instance_id, {})
            attempts[key] = _Attempt(attempt.instance_id, now_s, STREAM_S, begun=True)

    def ended(self, key: str, now_s: float) -> float:
        """Remove an attempt that has ended; return how long its first byte was awaited, 0 if it
        came."""
        attempt = self._pop(key)
        return 0.0 if attempt is None or attempt.begun else now_s - attempt.since_s

    def silent(
        self, instance_id: str, heard_s: float, worked_s: float, now_s: float, *, proven: bool
    ) -> list[str]:
        """Return the attempts there that have waited for too long.

        `heard_s`: when the last byte came from there. `worked_s`: when the engine last ran a step.
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
        """Return how long the slowest recent first byte took, which decays; 0 if none is known."""
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
