"""Requests that wait in the queues of engines, and which of them are worth calling back.

What waits in an engine's queue waits for this engine, though another one may have room by now:
answers end sooner or later than was foretold. Nothing has been computed of it, so it can be taken
back and sent elsewhere, and its client notices nothing. That is work stealing (Blumofe and
Leiserson, JACM 46(5), 1999) with a forecast in the place of an idle worker's attempt.
"""

from collections.abc import Callable
from dataclasses import dataclass

REVIEW_PAUSE_S = 0.1
"""Pause between two reviews of one request: about as often news of engines come."""
GAIN = 2.0
"""A request is called back from a wait this many times as long as elsewhere: forecasts err, and
there it is the last in the queue. So no request goes to and fro: its wait is halved each time."""


@dataclass(slots=True)
class _Waiting:
    instance_id: str
    arrived_s: float
    sent_s: float
    reviewed_s: float


class Unstarted:
    """The dispatched requests that have no token yet, as far as is known."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def add(self, key: str, instance_id: str, arrived_s: float, now_s: float) -> None:
        """The request is sent to this instance, which was the best choice just now."""
        self._waiting[key] = _Waiting(instance_id, arrived_s, now_s, now_s)

    def discard(self, key: str) -> None:
        """The request has a token or has ended, or cannot be called back any more."""
        self._waiting.pop(key, None)

    def pick(self, now_s: float, may_wait: Callable[[str, float], bool]) -> str | None:
        """The oldest request that is due for a review; None where none is.

        `may_wait` says whether what was sent to an instance at a time may wait in its queue.
        """
        due = [
            (waiting.arrived_s, key)
            for key, waiting in self._waiting.items()
            if now_s - waiting.reviewed_s >= REVIEW_PAUSE_S
            and may_wait(waiting.instance_id, waiting.sent_s)
        ]
        if not due:
            return None
        _, key = min(due)
        self._waiting[key].reviewed_s = now_s
        return key


def is_worth_it(wait_s: float, elsewhere_s: float) -> bool:
    """Whether a request that would wait another `wait_s` is called back for a shorter wait."""
    return wait_s > GAIN * elsewhere_s
