"""The instances as one scheduler knows them: health, load, and what it sent to each."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from foretell.model import Load
from foretell.placement.config import STALE_LOAD_S
from foretell.placement.events import InstanceFollowed
from foretell.placement.needs import INPUTS, Need, Unfit, differ

QPM_WINDOW_S = 60.0
LONGEST_SHUN_S = 60.0


@dataclass(slots=True, eq=False)
class Instance:
    """One instance as this scheduler knows it."""

    instance_id: str
    models: frozenset[str] = frozenset()
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Longest context of each model in tokens, where it is known."""
    lacks: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of a model and a kind of input that it has refused since it came up."""
    up: bool = False
    draining: bool = False
    suspected: bool = False
    """An attempt failed here since the last successful probe; others are preferred."""
    proven: bool = False
    """It has answered a request since it came up."""
    failures: int = 0
    """Consecutive failures; attempts that were in progress together count as one."""
    failed_s: float = -inf
    """When the latest of these failures was counted."""
    shunned_until_s: float = -inf
    """Until then successful probes do not clear the suspicion."""
    times_down: int = 0
    """How often it went down; each time, a new process takes the place of the former one."""
    outstanding: int = 0
    """Leases: this scheduler's requests in progress here."""
    dispatched_total: int = 0
    load: Load | None = None
    heard_s: float = -inf
    """When a snapshot showed `load`."""
    heard_outstanding: int = 0
    """`outstanding` at that time."""
    shortlisted: bool = False
    """It has been on a shortlist."""
    _dispatched_s: deque[float] = field(default_factory=deque)

    def lease(self, now_s: float) -> "Lease":
        """Count a request that is sent here."""
        self.outstanding += 1
        self.dispatched_total += 1
        self._dispatched_s.append(now_s)
        return Lease(self, now_s)

    def dispatched_last_minute(self, now_s: float) -> int:
        """Return how many requests were sent here within the last 60 s."""
        while self._dispatched_s and self._dispatched_s[0] <= now_s - QPM_WINDOW_S:
            self._dispatched_s.popleft()
        return len(self._dispatched_s)

    def forgive(self) -> None:
        """Reset the failures."""
        self.failures, self.failed_s, self.shunned_until_s = 0, -inf, -inf

    def recent_load(self, now_s: float) -> Load | None:
        """Return the last known load; None if it is too old.

        This scheduler's own requests are counted as of now. Otherwise an instance that was idle in
        its last snapshot would get all of a burst.
        """
        load = self._told_load(now_s)
        return None if load is None else load.with_more(self._sent_since)

    def recent_requests(self, now_s: float) -> int | None:
        """Return the number of requests in `recent_load`."""
        load = self._told_load(now_s)
        return None if load is None else max(0, load.requests + self._sent_since)

    @property
    def _sent_since(self) -> int:
        """By how much `outstanding` has changed since `load` was known."""
        return self.outstanding - self.heard_outstanding

    def _told_load(self, now_s: float) -> Load | None:
        """`load`, unless it is too old."""
        return self.load if now_s - self.heard_s <= STALE_LOAD_S else None

    @property
    def by_priority(self) -> bool:
        """Whether the engine is known to admit by priority; others refuse requests with one."""
        return self.load is not None and self.load.by_priority


class Lease:
    """The place of one request at an instance. It must be given back exactly once."""

    __slots__ = ("_held", "_times_down", "instance", "made_s")

    def __init__(self, instance: Instance, made_s: float) -> None:
        self.instance = instance
        self.made_s = made_s
        self._times_down = instance.times_down
        self._held = True

    @property
    def tells(self) -> bool:
        """Whether its outcome still says something about the instance: False once that went
        down."""
        return self._times_down == self.instance.times_down

    def give_back(self) -> None:
        """Count the request as no longer in progress there."""
        assert self._held, f"a lease of {self.instance.instance_id} was given back twice"
        self._held = False
        self.instance.outstanding -= 1
        assert self.instance.outstanding >= 0, f"{self.instance.instance_id} lost count"


class Instances:
    """All instances of the cluster, and which of them may get a request."""

    def __init__(self) -> None:
        self._known: dict[str, Instance] = {}
        self.get = self._known.get
        """Return the instance with an id; None if it does not belong to the cluster."""
        self._eligible: dict[str, list[str]] = {}
        self._differ: dict[str, bool] = {}
        """By model: whether its instances differ in what requests they can serve."""
        self.followed: set[str] = set()
        """Ids of those of which there are snapshots."""

    def __getitem__(self, instance_id: str) -> Instance:
        return self._known[instance_id]

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._known

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._known.values())

    def outstanding(self, instance_id: str) -> int:
        """Return the number of this scheduler's requests in progress at an instance."""
        return self._known[instance_id].outstanding

    def put_up(
        self,
        instance_id: str,
        models: frozenset[str],
        now_s: float,
        lengths: Mapping[str, int] | None = None,
    ) -> bool:
        """Note that the instance is up; return whether that changes which may get requests."""
        known = self._known.get(instance_id)
        if known is None:
            known = self._known[instance_id] = Instance(instance_id)
        before = known.up, known.suspected, known.models, known.lengths
        suspected = known.suspected and now_s < known.shunned_until_s
        after = True, suspected, models, lengths or {}
        known.up, known.suspected, known.models, known.lengths = after
        if before == after:
            return False
        self._changed()
        return True

    def _changed(self) -> None:
        self._eligible.clear()
        self._differ.clear()

    def heard(self, instance: Instance, load: Load, now_s: float) -> None:
        """Note the load that a snapshot shows."""
        instance.load, instance.heard_s = load, now_s
        instance.heard_outstanding = instance.outstanding

    def put_down(self, instance_id: str) -> None:
        """Note that the instance is down."""
        known = self._known.get(instance_id)
        if known is None or not known.up:
            return
        known.up = known.proven = False
        known.times_down += 1
        known.forgive()  # when it comes up again, it is another process
        known.lacks.clear()
        self._changed()

    def follow(self, event: InstanceFollowed) -> None:
        """Note whether there are snapshots of the instance from now on."""
        (self.followed.add if event.followed else self.followed.discard)(event.instance_id)

    def drain(self, instance_id: str) -> None:
        """Send no new requests to the instance from now on."""
        if instance_id in self._known:
            self._known[instance_id].draining = True
            self._changed()

    def take_back(self, instance_id: str) -> None:
        """End the instance's draining: it gets requests again."""
        if instance_id in self._known:
            self._known[instance_id].draining = False
            self._changed()

    def remove(self, instance_id: str) -> None:
        """Remove the instance from the cluster; leases on it stay valid."""
        self.followed.discard(instance_id)
        if self._known.pop(instance_id, None) is not None:
            self._changed()

    def failed(self, lease: Lease, now_s: float, cost_s: float = 0.0) -> None:
        """Prefer other instances after a failed attempt, until the next successful probe.

        Such a probe counts after `cost_s` at the earliest, the time that the failed attempt took,
        doubled with each consecutive failure and at most `LONGEST_SHUN_S`: an engine that hangs or
        refuses everything may still answer its probes.
        """
        instance = lease.instance
        if not lease.tells:
            return
        if lease.made_s >= instance.failed_s:  # sent after the failures before
            instance.failures += 1
            instance.failed_s = now_s
        shun_s = min(LONGEST_SHUN_S, cost_s * 2 ** min(instance.failures - 1, 10))
        instance.shunned_until_s = max(instance.shunned_until_s, now_s + shun_s)
        if not instance.suspected:
            instance.suspected = True
            self._changed()

    def answered(self, lease: Lease) -> None:
        """Reset the instance's failures because it has answered a request."""
        instance = lease.instance
        if not lease.tells:
            return
        instance.proven = True
        instance.forgive()

    def work(self, model: str) -> bool:
        """Whether an instance that serves `model` is known to work.

        It has answered since it came up, and no attempt there failed since its last probe.
        """
        return any(
            each.up and each.proven and not each.suspected and not each.draining
            for each in self
            if model in each.models
        )

    def eligible(
        self,
        model: str,
        avoid: Collection[str] = (),
        *,
        need: Need | None = None,
        unfit: Collection[str] = (),
    ) -> list[str]:
        """The ids of those that may get a request to `model`, in the order in which they appeared.

        Suspected instances and those in `avoid` are returned only if there are no others: a request
        that fails on every engine must not make all of them unavailable to other requests. None of
        `unfit` is returned, nor one known to lack what `need` says, unless all lack it.
        """
        found = self._eligible.get(model)
        if found is None:
            found = self._eligible[model] = _trusted(self._serving(model))
            self._differ[model] = differ(model, self._serving(model))
        if need is not None and (need.keeper or unfit or self._differ[model]):
            found = self._fitting(model, need, unfit)
        if not avoid:
            return found
        return [instance_id for instance_id in found if instance_id not in avoid] or found

    def _serving(self, model: str) -> list[Instance]:
        return [i for i in self if i.up and not i.draining and model in i.models]

    def _fitting(self, model: str, need: Need, unfit: Collection[str]) -> list[str]:
        keeper = self._known.get(need.keeper)
        if keeper is not None and need.keeper not in unfit:  # even if it drains
            return [keeper.instance_id] if keeper.up and model in keeper.models else []
        left = [each for each in self._serving(model) if each.instance_id not in unfit]
        return _trusted(need.fitting(model, left))

    def refused(self, lease: "Lease", model: str, why: Unfit, need: Need) -> set[str]:
        """Learn that a healthy instance cannot serve a request to `model`; return the ids of all
        instances that cannot serve it either."""
        instance = lease.instance
        alike = {instance.instance_id}
        if why == "length":
            length = instance.lengths.get(model, 0)
            alike |= {i.instance_id for i in self if i.lengths.get(model, 0) <= length}
        elif why == "model" and lease.tells:
            instance.models -= {model}
            self._changed()
        elif why in INPUTS and lease.tells:
            instance.lacks.add((model, why))
            self._changed()
            alike |= {i.instance_id for i in self if need.lacking(model, i)}
        return alike


def _trusted(known: Sequence[Instance]) -> list[str]:
    """The ids of those that are not suspected; of all if all are."""
    trusted = [each for each in known if not each.suspected] or known
    return [each.instance_id for each in trusted]
