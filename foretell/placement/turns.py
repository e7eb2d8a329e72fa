"""The turns of placements: one at a time, the most urgent first.

Placements that ask predictors take turns, because each must see the reservation of the one before.
"""

from heapq import heapify, heappop, heappush
from itertools import count

from foretell.policy import Urgency


class Turns:
    """A queue for one turn; pure, so whoever drives it keeps the clock."""

    def __init__(self) -> None:
        self.holder: str | None = None
        """The key of the request that has the turn."""
        self._waiting: list[tuple[Urgency, int, str]] = []
        self._tickets = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, key: str) -> bool:
        """Give the turn to `key` if it is free."""
        if self.holder is not None:
            return False
        self.holder = key
        return True

    def queue(self, key: str, urgency: Urgency) -> None:
        """`key` waits for its turn."""
        heappush(self._waiting, (urgency, next(self._tickets), key))

    def leave(self, key: str) -> None:
        """`key` waits no longer."""
        self._waiting = [waiter for waiter in self._waiting if waiter[2] != key]
        heapify(self._waiting)

    def give_back(self) -> None:
        """The holder's turn has ended."""
        assert self.holder is not None, "nobody has the turn"
        self.holder = None

    def take_next(self) -> str | None:
        """Give the turn to the most urgent who waits; None if it is taken or nobody waits."""
        if self.holder is not None or not self._waiting:
            return None
        self.holder = heappop(self._waiting)[2]
        return self.holder
