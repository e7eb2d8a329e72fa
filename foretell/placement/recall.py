"""Requests that wait in the queues of engines, and which of them are worth calling back.

What waits in an engine's queue waits for this engine, though another one may have room by now:
answers end sooner or later than was foretold. Nothing has been computed of it, so it can be taken
back and sent elsewhere, and its client notices nothing. That is work stealing (Blumofe and
Leiserson, JACM 46(5), 1999) with a forecast in the place of an idle worker's attempt.
"""

from dataclasses import dataclass

from foretell.placement.instances import Instances

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

    def pick(self, instances: Instances, now_s: float) -> str | None:
        """The oldest request that is due for a review; None where none is."""
        due = [
            (waiting.arrived_s, key)
            for key, waiting in self._waiting.items()
            if now_s - waiting.reviewed_s >= REVIEW_PAUSE_S and _may_wait(waiting, instances)
        ]
        if not due:
            return None
        _, key = min(due)
        self._waiting[key].reviewed_s = now_s
        return key


def _may_wait(waiting: _Waiting, instances: Instances) -> bool:
    """Whether it may still wait in the engine's queue: no later news says the contrary."""
    instance = instances.get(waiting.instance_id)
    if instance is None:
        return False
    load = instance.load
    return load is None or instance.heard_s <= waiting.sent_s or load.waiting > 0


def is_worth_it(wait_s: float, elsewhere_s: float) -> bool:
    """Whether a request that would wait another `wait_s` is called back for a shorter wait."""
    return wait_s > GAIN * elsewhere_s
