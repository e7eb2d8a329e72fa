"""Limits of callers for all replicas together: each tells the others what was spent at it.

A replica takes what it hears out of its own buckets. So all replicas' buckets have the same level,
except for what was spent since the latest messages. Messages are defined in `predictor.proto`.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from foretell.tenants.quota import Tenant
from foretell.v1 import predictor_pb2

TELL_EVERY_S = 0.2
_TELL_EACH_S = 0.001
"""Added to the interval for each caller in a message, which costs processor time."""
_IDLE_S = 1.0
"""Interval of messages that only say that the replica is alive."""
SILENT_S = 3.0
"""A replica that was not heard for so long counts as having nothing in progress."""
_FORGOTTEN_S = 60.0
_MOST_TOLD = 4096
"""Most callers in a message."""

Way = Callable[[predictor_pb2.Spending], None]


@dataclass(slots=True)
class _Replica:
    number: int
    heard_s: float
    in_progress: dict[int, int]


class Spending:
    """What one replica tells the others, and hears from them."""

    def __init__(
        self,
        tenants: Callable[[], Iterable[Tenant]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenants = tenants
        self._clock = clock
        self._own = secrets.randbits(64)
        self._number = 0
        self._told_s = -inf
        self._told_any = False
        self._others: dict[int, _Replica] = {}

    async def run(self, ways: Callable[[], Sequence[Way]]) -> None:
        """Tell the others periodically until cancelled. `ways` returns functions that do so."""
        pause_s = TELL_EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            found = ways()
            message = self.message() if found else None
            if message is not None:
                for way in found:
                    way(message)
                pause_s = TELL_EVERY_S + _TELL_EACH_S * len(message.spent)

    def message(self) -> predictor_pb2.Spending | None:
        """The next message; None if there is nothing to send yet."""
        now_s = self._clock()
        self._others = {
            each: other
            for each, other in self._others.items()
            if now_s < other.heard_s + _FORGOTTEN_S
        }
        tenants = list(self._tenants())
        unsent = [tenant.take_unsent() for tenant in tenants if tenant.is_active][:_MOST_TOLD]
        spent = [predictor_pb2.Spent(**each._asdict()) for each in unsent]
        is_new = spent or self._told_any  # a caller that is missing has nothing in progress
        if not tenants or (not is_new and now_s < self._told_s + _IDLE_S):
            return None
        self._told_s, self._told_any = now_s, bool(spent)
        self._number += 1
        return predictor_pb2.Spending(replica=self._own, number=self._number, spent=spent)

    def hear(self, message: predictor_pb2.Spending) -> None:
        """Take in a message of another replica."""
        before = self._others.get(message.replica)
        if message.replica == self._own or (before and message.number <= before.number):
            return  # it came by another way already
        in_progress = {each.caller: each.in_progress for each in message.spent}
        self._others[message.replica] = _Replica(message.number, self._clock(), in_progress)
        spent = {each.caller: each for each in message.spent}
        for tenant in self._tenants() if spent else ():
            each = spent.get(tenant.caller)
            if each is None or not isfinite(each.tokens + each.requests_left + each.tokens_left):
                continue
            if before is None:
                tenant.lower(each.requests_left, each.tokens_left)
            else:
                tenant.take_out(each.requests, each.tokens)

    def in_progress(self, caller: int) -> int:
        """The caller's requests in progress at other replicas."""
        since_s = self._clock() - SILENT_S
        others = self._others.values()
        return sum(each.in_progress.get(caller, 0) for each in others if each.heard_s >= since_s)
