"""The instances as one scheduler knows them: health, load, and what it has sent to each."""

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
    """Models and the kinds of inputs that it has refused for them since it came up."""
    up: bool = False
    draining: bool = False
    suspected: bool = False
    """An attempt failed here since the last good probe: others are preferred."""
    proven: bool = False
    """It has answered since it came up."""
    failures: int = 0
    """Failures in a row: attempts that were in progress together fail once."""
    failed_s: float = -inf
    """When the latest of these failures was."""
    shunned_until_s: float = -inf
    """Until then good probes do not clear the suspicion."""
    times_down: int = 0
    """How often it went down: whoever was sent here before was sent to another process."""
    outstanding: int = 0
    """Requests of this scheduler in progress here: its leases."""
    dispatched_total: int = 0
    load: Load | None = None
    heard_s: float = -inf
    """The time at which a snapshot showed `load`."""
    heard_outstanding: int = 0
    """`outstanding` at that time."""
    shortlisted: bool = False
    """It was a candidate while others were not."""
    _dispatched_s: deque[float] = field(default_factory=deque)

    def lease(self, now_s: float) -> "Lease":
        """A request is sent here."""
        self.outstanding += 1
        self.dispatched_total += 1
        self._dispatched_s.append(now_s)
        return Lease(self, now_s)

    def dispatched_last_minute(self, now_s: float) -> int:
        """Requests that were sent here within the last 60 s."""
        while self._dispatched_s and self._dispatched_s[0] <= now_s - QPM_WINDOW_S:
            self._dispatched_s.popleft()
        return len(self._dispatched_s)

    def forgive(self) -> None:
        """What failed here before no longer counts."""
        self.failures, self.failed_s, self.shunned_until_s = 0, -inf, -inf

    def recent_load(self, now_s: float) -> Load | None:
        """The last known load, if it is recent enough to say something.

        This scheduler's own requests count as they are now: otherwise an instance that was idle
        when it was heard last would get all of a burst.
        """
        load = self._told_load(now_s)
        return None if load is None else load.with_more(self._sent_since)

    def recent_requests(self, now_s: float) -> int | None:
        """The requests of `recent_load`."""
        load = self._told_load(now_s)
        return None if load is None else max(0, load.requests + self._sent_since)

    @property
    def _sent_since(self) -> int:
        """Requests in progress that were not when the load was told, less those that were."""
        return self.outstanding - self.heard_outstanding

    def _told_load(self, now_s: float) -> Load | None:
        """What the predictor told, unless that is too long ago."""
        return self.load if now_s - self.heard_s <= STALE_LOAD_S else None

    @property
    def by_priority(self) -> bool:
        """The engine is known to admit by priority; others refuse a request that has one."""
        return self.load is not None and self.load.by_priority


class Lease:
    """One request's place at an instance; it is given back exactly once."""

    __slots__ = ("_held", "_times_down", "instance", "made_s")

    def __init__(self, instance: Instance, made_s: float) -> None:
        self.instance = instance
        self.made_s = made_s
        self._times_down = instance.times_down
        self._held = True

    @property
    def tells(self) -> bool:
        """Whether its end says something of the instance: it has not been down since."""
        return self._times_down == self.instance.times_down

    def give_back(self) -> None:
        """The request is no longer in progress there."""
        assert self._held, f"a lease of {self.instance.instance_id} was given back twice"
        self._held = False
        self.instance.outstanding -= 1
        assert self.instance.outstanding >= 0, f"{self.instance.instance_id} lost count"


class Instances:
    """All instances of the cluster, and which of them may get a request."""

    def __init__(self) -> None:
        self._known: dict[str, Instance] = {}
        self.get = self._known.get
        """The instance of an id, if it still belongs to the cluster."""
        self._eligible: dict[str, list[str]] = {}
        self._differ: dict[str, bool] = {}
        """By model: whether it matters what a request needs."""
        self.followed: set[str] = set()
        """Those of which there are snapshots."""

    def __getitem__(self, instance_id: str) -> Instance:
        return self._known[instance_id]

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._known

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._known.values())

    def outstanding(self, instance_id: str) -> int:
        """This scheduler's requests in progress at an instance."""
        return self._known[instance_id].outstanding

    def put_up(
        self,
        instance_id: str,
        models: frozenset[str],
        now_s: float,
        lengths: Mapping[str, int] | None = None,
    ) -> bool:
        """The instance is up; whether that changes who may get requests."""
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
        """Others may get requests now."""
        self._eligible.clear()
        self._differ.clear()

    def heard(self, instance: Instance, load: Load, now_s: float) -> None:
        """A snapshot shows the instance's load."""
        instance.load, instance.heard_s = load, now_s
        instance.heard_outstanding = instance.outstanding

    def put_down(self, instance_id: str) -> None:
        """The instance is down."""
        known = self._known.get(instance_id)
        if known is None or not known.up:
            return
        known.up = known.proven = False
        known.times_down += 1
        known.forgive()  # whatever comes up is another process
        known.lacks.clear()
        self._changed()

    def follow(self, event: InstanceFollowed) -> None:
        """There are snapshots of the instance from now on, or no longer."""
        (self.followed.add if event.followed else self.followed.discard)(event.instance_id)

    def drain(self, instance_id: str) -> None:
        """The instance gets nothing new from now on."""
        if instance_id in self._known:
            self._known[instance_id].draining = True
            self._changed()

    def take_back(self, instance_id: str) -> None:
        """The instance, which was draining, gets requests again."""
        if instance_id in self._known:
            self._known[instance_id].draining = False
            self._changed()

    def remove(self, instance_id: str) -> None:
        """The instance no longer belongs to the cluster; leases on it stay valid."""
        self.followed.discard(instance_id)
        if self._known.pop(instance_id, None) is not None:
            self._changed()

    def failed(self, lease: Lease, now_s: float, cost_s: float = 0.0) -> None:
        """An attempt has failed: nothing more goes there until the instance's next successful
        probe, if another can serve.

        Nor for as long as the failed attempt took, `cost_s`, and twice as long after each further
        failure in a row: an engine may hang, or refuse everything, and answer its probes.
        """
        instance = lease.instance
        if not lease.tells:
            return
        if lease.made_s >= instance.failed_s:  # sent in spite of those before
            instance.failures += 1
            instance.failed_s = now_s
        shun_s = min(LONGEST_SHUN_S, cost_s * 2 ** min(instance.failures - 1, 10))
        instance.shunned_until_s = max(instance.shunned_until_s, now_s + shun_s)
        if not instance.suspected:
            instance.suspected = True
            self._changed()

    def answered(self, lease: Lease) -> None:
        """The instance has answered a request: what failed before is forgiven."""
        instance = lease.instance
        if not lease.tells:
            return
        instance.proven = True
        instance.forgive()

    def work(self, model: str) -> bool:
        """Whether an instance has answered, and none of its attempts failed since its last probe.

        It is one that serves `model`.
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
        """Ids of those that may get a request to `model`, in the order in which they became known.

        Suspected ones only if there are no others, since a request that fails on every engine must
        not close all of them to everyone else; likewise those in `avoid`. None of `unfit`, and of
        the others those that can do what it needs.
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
        if keeper is not None and need.keeper not in unfit:  # also while it drains
            return [keeper.instance_id] if keeper.up and model in keeper.models else []
        left = [each for each in self._serving(model) if each.instance_id not in unfit]
        return _trusted(need.fitting(model, left))

    def refused(self, lease: "Lease", model: str, why: Unfit, need: Need) -> set[str]:
        """The instance is well, and cannot serve a request to `model`: all that cannot either."""
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
    """Those of which no attempt failed lately; all, where there are none."""
    trusted = [each for each in known if not each.suspected] or known
    return [each.instance_id for each in trusted]
