"""Publishes what the predictor knows to the schedulers that follow it.

A picture is sent when something has changed, at most ten times a second; more often only where one
scheduler must hear of what another one has sent here. While the engine is busy and nothing changes,
that is said as often: a step still lasts. `docs/adr/0008-predictor-snapshots.md` has the reasons.
"""

import asyncio
from collections import deque
from dataclasses import replace
from math import inf

from foretell import wire
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.published import Published
from foretell.services.predictor.service import PredictorService
from foretell.services.process.frames import ServedStream
from foretell.services.process.traffic import Traffic
from foretell.v1 import predictor_pb2
from foretell.wire.published import published_to_proto

INTERVAL_S = 0.1
"""Least time between two pictures."""
URGENT_INTERVAL_S = 0.02
"""Least time between two where a scheduler does not know yet what another one has sent here."""
HEARTBEAT_S = 1.0
SETTLE_S = 0.05
"""Time that an answer's last snapshots have to arrive after its end."""
MAX_FOLLOWERS = 256
MAX_NOTICE_BYTES = 1 << 20
MAX_ENDED = 10_000
"""Answers that are kept for a follower which does not read."""
MAX_PASSED = 64
"""Latest messages of other followers that are kept for one which does not read."""


class Publisher:
    """The followers of one predictor, and when they are told."""

    def __init__(self, service: PredictorService, traffic: Traffic) -> None:
        self.traffic = traffic
        self._service = service
        self._followers: set[Follower] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = float("inf")
        self._sent_s = float("-inf")
        self._changes = 0
        service.changed = self.changed

    def stream(self) -> "Follower":
        """The end of a stream that somebody is opening."""
        return Follower(self, self._service)

    def close(self) -> None:
        """End all streams."""
        if self._timer is not None:
            self._timer.cancel()
        for follower in list(self._followers):
            follower.close()

    def joined(self, follower: "Follower") -> bool:
        """A follower has proved who it is; False where there are too many."""
        if len(self._followers) >= MAX_FOLLOWERS:
            return False
        self._followers.add(follower)
        self._publish()
        return True

    def left(self, follower: "Follower") -> None:
        self._followers.discard(follower)

    def changed(self, by: "Follower | None" = None) -> None:
        """Something is another since the last picture: `by` a follower's notice, or otherwise."""
        if not self._followers:
            return
        self._changes += 1
        others = by is not None and len(self._followers) > 1
        self._at(self._sent_s + (URGENT_INTERVAL_S if others else INTERVAL_S))

    def pass_on(self, by: "Follower", spending: predictor_pb2.Spending) -> None:
        """What a follower tells the others."""
        others = self._followers - {by}
        for follower in others:
            follower.passed.append(spending)
        if others:
            self._at(self._sent_s + INTERVAL_S)

    def settling(self, due_s: float) -> None:
        """There will be something to say of a follower's request from `due_s` on."""
        self._at(max(due_s, self._sent_s + INTERVAL_S))

    def _at(self, when_s: float) -> None:
        if self._timer is not None:
            if self._due_s <= when_s:
                return
            self._timer.cancel()
        # The handle does not tell when: uvloop's has no `when` if that is over.
        self._timer, self._due_s = self._loop.call_at(when_s, self._publish), when_s

    def _publish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._followers:
            return
        self._sent_s = self._loop.time()
        for follower in self._followers:
            self._changes += follower.settle(self._sent_s)
        service, picture = self._service, None
        self._changes += service.has_faded()
        if any(follower.changes != self._changes for follower in self._followers):
            picture = service.publish()
        message = Published(
            service.now_s(),
            service.predictor.heard_unix_s,
            picture,
            silent_s=service.silent_s(),
        )
        for follower in self._followers:
            follower.publish(message, service.profile, self._changes)
        busy = service.predictor.is_busy  # then its silence says that a step still lasts
        waiting = any(follower.is_settling for follower in self._followers)
        self._at(self._sent_s + (INTERVAL_S if busy or waiting else HEARTBEAT_S))


class Follower(ServedStream):
    """One scheduler that follows: its notices come in, pictures go out."""

    def __init__(self, publisher: Publisher, service: PredictorService) -> None:
        super().__init__(publisher.traffic, MAX_NOTICE_BYTES)
        self._publisher = publisher
        self._service = service
        self._notices = 0
        self._settling = deque[tuple[float, predictor_pb2.CompleteRequest]]()
        self._ended = deque[predictor_pb2.Ended](maxlen=MAX_ENDED)
        self._index: PrefixIndex | None = None
        self._known_changes = 0
        self.passed = deque[predictor_pb2.Spending](maxlen=MAX_PASSED)
        """What others have told, and this one has not heard yet."""
        self._profile_sent = False
        self.changes = -1
        """The number of changes that the follower knows of."""

    def joined(self) -> bool:
        return self._publisher.joined(self)

    def left(self) -> None:
        self._publisher.left(self)
        self.settle(inf)

    @property
    def is_settling(self) -> bool:
        """Requests have ended of which nothing was said yet."""
        return bool(self._settling)

    def publish(self, message: Published, profile: str, changes: int) -> None:
        """Send what is new, unless the follower is behind with reading."""
        if self.congested:
            return  # the next picture says it all
        if message.picture is not None:
            message = replace(message, picture=replace(message.picture, notices=self._notices))
            self.changes = changes
        message = self._with_prefixes(message)
        sent = published_to_proto(message, "" if self._profile_sent else profile)
        sent.ended.extend(self._ended)
        self._ended.clear()
        sent.unpredicted = self._service.unpredicted
        sent.spending.extend(self.passed)
        self.passed.clear()
        self._profile_sent |= message.picture is not None
        self.send(sent.SerializeToString())

    def heard(self, payload: bytes) -> None:
        notice = predictor_pb2.Notice.FromString(payload)
        if notice.HasField("spending"):
            self._publisher.pass_on(self, notice.spending)
            return
        self._notices += 1
        if notice.HasField("reserved"):
            self._service.reserve(wire.request_from_proto(notice.reserved), notice.age_s)
            self._publisher.changed(self)
        elif notice.ended.answered:
            # Notices are faster than snapshots: the engine's last ones of it are on their way.
            due_s = asyncio.get_running_loop().time() + SETTLE_S
            self._settling.append((due_s, notice.ended))
            self._publisher.settling(due_s)
        elif notice.HasField("ended"):
            self._settle(notice.ended)
            self._publisher.changed(self)

    def settle(self, now_s: float) -> int:
        """Note what was seen of requests that have ended, once that is all there is to see.

        That is done when a picture is due: a timer for each would cost as much as the notice does.
        Returns how many there were.
        """
        count = 0
        while self._settling and self._settling[0][0] <= now_s:
            self._settle(self._settling.popleft()[1])
            count += 1
        return count

    def _settle(self, ended: predictor_pb2.CompleteRequest) -> None:
        seen = self._service.complete(ended)
        self._ended.append(predictor_pb2.Ended(request_id=ended.request_id, seen=seen))

    def _with_prefixes(self, message: Published) -> Published:
        index = self._service.predictor.ledger.prefixes
        if index is None and self._index is None:
            return message
        changes = None
        if index is self._index and index is not None:
            changes = index.changes_since(self._known_changes)
        self._index, self._known_changes = index, index.journal_end if index else 0
        if changes is None:
            present = tuple(index.chunks) if index else ()
            return replace(message, all_prefixes=True, cached_prefixes=present)
        return replace(
            message,
            cached_prefixes=tuple(key for key, is_cached in changes.items() if is_cached),
            evicted_prefixes=tuple(key for key, is_cached in changes.items() if not is_cached),
        )
