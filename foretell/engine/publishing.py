"""When a predictor sends what it knows to the schedulers that follow it.

A snapshot is sent when something has changed, at most ten times a second, or more often if one
scheduler must learn what another one has sent here. While the engine is busy and nothing changes,
a message without a snapshot is sent as often: it says that a step still runs. The reasons are in
`docs/adr/0008-predictor-snapshots.md`.
"""

from typing import Protocol

from foretell.engine.prefixes import PrefixIndex
from foretell.engine.published import Published, Snapshot
from foretell.model.clock import SNAPSHOT_INTERVAL_S, Clock, Timer

URGENT_INTERVAL_S = 0.02
"""Least seconds between messages if one scheduler must learn what another one has sent here."""
HEARTBEAT_S = 1.0
MAX_FOLLOWERS = 256


class Source(Protocol):
    """One engine's predictor. Instants are of its own clock."""

    @property
    def is_busy(self) -> bool:
        """Whether the engine has requests, so that its silence means that a step still runs."""
        ...

    def has_changed(self) -> bool:
        """Whether there are changes since `publish` not reported to `Publisher.changed`."""
        ...

    def publish(self) -> Snapshot | None:
        """The snapshot of the engine; None before the engine's first one."""
        ...

    def message(self, snapshot: Snapshot | None) -> Published:
        """The message with that snapshot."""
        ...


class Follower(Protocol):
    """One scheduler that follows."""

    changes: int
    """The number of changes that were sent to it; negative before the first snapshot."""

    @property
    def is_settling(self) -> bool:
        """Whether requests have ended that are not settled yet."""
        ...

    def settle(self, now_s: float) -> int:
        """Settle requests that have ended; returns how many."""
        ...

    def publish(self, message: Published, changes: int) -> None:
        """Send `message`. If it has a snapshot, the follower then knows of `changes` changes."""
        ...


class Publisher:
    """The followers of one predictor, and when they are notified."""

    def __init__(
        self, clock: Clock, source: Source, interval_s: float = SNAPSHOT_INTERVAL_S
    ) -> None:
        self.followers: dict[Follower, None] = {}
        self._clock = clock
        self._source = source
        self._interval_s = interval_s
        self._timer: Timer | None = None
        self._due_s = self._sent_s = 0.0
        self._changes = 0

    def close(self) -> None:
        """Drop all followers and stop."""
        self.followers.clear()
        if self._timer is not None:
            self._timer.cancel()

    def join(self, follower: Follower) -> bool:
        """Add a follower; False if there are too many."""
        if len(self.followers) >= MAX_FOLLOWERS:
            return False
        self.followers[follower] = None
        self._publish()
        return True

    def leave(self, follower: Follower) -> None:
        """Remove a follower."""
        self.followers.pop(follower, None)

    def changed(self, by: Follower | None = None) -> None:
        """Note a change since the last snapshot; `by` the follower whose notice caused it."""
        if not self.followers:
            return
        self._changes += 1
        urgent = by is not None and len(self.followers) > 1
        pause_s = min(URGENT_INTERVAL_S, self._interval_s) if urgent else self._interval_s
        self._at(self._sent_s + pause_s)

    def due(self, when_s: float) -> None:
        """Note that there will be something to publish from `when_s` on."""
        if self.followers:
            self._at(max(when_s, self._sent_s + self._interval_s))

    def _at(self, when_s: float) -> None:
        if self._timer is not None:
            if self._due_s <= when_s:
                return
            self._timer.cancel()
        self._timer, self._due_s = self._clock.at(when_s, self._publish), when_s

    def _publish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.followers:
            return
        source, now_s, followers = self._source, self._clock.now_s(), list(self.followers)
        self._sent_s = now_s
        changes, is_new = self._changes + source.has_changed(), False
        for follower in followers:
            changes += follower.settle(now_s)
        for follower in followers:
            is_new = is_new or follower.changes != changes
        self._changes = changes
        message = source.message(source.publish() if is_new else None)
        is_soon = source.is_busy
        for follower in followers:
            follower.publish(message, changes)
            is_soon = is_soon or follower.is_settling
        self._at(now_s + (self._interval_s if is_soon else HEARTBEAT_S))


class PrefixNews:
    """The changes of an engine's cached prefixes that one follower has not heard of yet."""

    def __init__(self) -> None:
        self._index: PrefixIndex | None = None
        self._known_changes = 0

    def add(self, message: Published, index: PrefixIndex | None) -> Published:
        """The message with the prefixes that came and went since the previous message."""
        if index is None and self._index is None:
            return message
        changes = None
        if index is self._index and index is not None:
            changes = index.changes_since(self._known_changes)
        self._index, self._known_changes = index, index.journal_end if index else 0
        if changes is None:
            present = tuple(index.chunks) if index else ()
            return message._replace(all_prefixes=True, cached_prefixes=present)
        return message._replace(
            cached_prefixes=tuple(key for key, is_cached in changes.items() if is_cached),
            evicted_prefixes=tuple(key for key, is_cached in changes.items() if not is_cached),
        )
