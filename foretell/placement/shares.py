"""Fair sharing of the engines between tenants.

An engine serves its queue in the order of arrival, so whoever sends most has most of every queue,
and all others wait behind it. A tenant with more than its share of the work in the engines is
therefore sent only where there is room. Its other requests wait here, where they delay nobody, and
of those who wait the tenant with the least work goes first.

Also an engine without a queue takes longer for a prompt where it is full: its steps are longer, and
another prompt may be under way. So some engines are left to those who are within their shares: as
many as their work fills by `KEPT_FULLNESS`.

A share is an equal part of all work in the engines, among the tenants of the last minute. Work is
counted in tokens, those of answers as predicted and twice, as in Sheng et al., *Fairness in Serving
Large Language Models*, OSDI 2024. A tenant by itself never waits here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from foretell.model import Load, RequestSpec
from foretell.policy import Urgency

PRESENT_S = 60.0
"""Seconds for which a tenant has a share after its last request."""
MOST_HELD = 1000
"""Requests that wait for their tenants' shares at most."""
SPARE_SEATS, SPARE_BLOCKS = 1 / 16, 1 / 4
"""Parts of an engine's seats and KV blocks that are kept for those who are within their shares:
running requests grow, and where blocks run out the last who came is preempted."""
ON_THE_WAY = 1 / 8
"""Most requests that are on their way to an engine, as a part of those that run there: what their
prompts will take of its next steps shows in no count."""
KEPT_FULLNESS = 1 / 4
"""How full the engines are that are left to those who are within their shares, if all of these are
there: about as full as where prompts seldom meet."""
OUTPUT_WEIGHT = 2.0


def work_of(spec: RequestSpec) -> float:
    """The work of a request, in tokens."""
    return spec.prompt_tokens + OUTPUT_WEIGHT * spec.sequences * spec.length.expected_tokens


def has_room(load: Load | None) -> bool:
    """Whether an engine could take another request without anybody having to wait for that.

    An engine of which nothing is known is taken to have room.
    """
    if load is None:
        return True
    seats = load.running + load.reserved < (1 - SPARE_SEATS) * load.max_num_seqs
    used = load.used_blocks + load.waiting_prefill_blocks
    blocks = used < (1 - SPARE_BLOCKS) * max(1, load.total_blocks)
    return not load.waiting and load.reserved <= ON_THE_WAY * load.running and seats and blocks


def fullness(load: Load | None) -> float:
    """The part of an engine's seats or of its KV blocks that is taken, whichever is more; 0 where
    nothing is known."""
    if load is None:
        return 0.0
    used = load.used_blocks + load.waiting_prefill_blocks
    seats = (load.running + load.reserved) / max(1, load.max_num_seqs)
    return max(seats, used / max(1, load.total_blocks))


@dataclass(slots=True, eq=False)
class _Tenant:
    seen_s: float
    work: float = 0.0
    held: list[tuple[Urgency, int, str]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return not self.held and self.work < 1.0


class Shares:
    """The tenants of one scheduler: the work that they have in engines, and who waits."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        """By their latest arrivals, the oldest first."""
        self._tickets = count()
        self._work = 0.0
        self.held = 0
        """Requests that wait."""
        self.trying: str | None = None
        """The request that has waited, and for which an instance is looked for again."""

    def arrived(self, tenant: str, now_s: float) -> None:
        """The tenant has sent a request."""
        known = self._tenants.pop(tenant, None) or _Tenant(now_s)
        known.seen_s = now_s
        self._tenants[tenant] = known
        while (oldest := next(iter(self._tenants.items())))[1].seen_s < now_s - PRESENT_S:
            name, idle = oldest[0], self._tenants.pop(oldest[0])
            if not idle.is_idle:
                idle.seen_s = now_s
                self._tenants[name] = idle

    def is_over(self, tenant: str) -> bool:
        """Whether the tenant has more than its share of the work in the engines."""
        known = self._tenants.get(tenant)
        return known is not None and known.work * len(self._tenants) > self._work

    def left_to_others(self, loads: Sequence[Load | None]) -> int:
        """How many of the engines with these loads, but never all, are left to those who are within
        their shares."""
        share = self._work / max(1, len(self._tenants))
        within = sum(each.work for each in self._tenants.values() if each.work <= share)
        full = sum(map(fullness, loads)) * within / max(1.0, self._work)
        return max(0, min(round(full / KEPT_FULLNESS), len(loads) - 1))

    def must_wait(self, tenant: str) -> bool:
        """Whether others of the tenant wait, which go first."""
        return bool(self._tenants[tenant].held)

    def sent(self, tenant: str, work: float) -> None:
        """An engine has so much more work of the tenant's."""
        self._tenants.setdefault(tenant, _Tenant(0.0)).work += work
        self._work += work

    def ended(self, tenant: str, work: float) -> None:
        """It has so much less."""
        self._tenants[tenant].work -= work
        self._work -= work

    def hold(self, tenant: str, urgency: Urgency, key: str) -> None:
        """A request waits."""
        heappush(self._tenants[tenant].held, (urgency, next(self._tickets), key))
        self.held += 1

    def leave(self, tenant: str, key: str) -> None:
        """A request waits no longer."""
        known = self._tenants[tenant]
        left = [waiter for waiter in known.held if waiter[2] != key]
        self.held -= len(known.held) - len(left)
        known.held = left
        heapify(left)

    def stop_trying(self, key: str) -> None:
        """An instance was found for the request, or is not looked for any more."""
        if self.trying == key:
            self.trying = None

    def take_next(self) -> str | None:
        """The most urgent request of the tenant with the least work; None: nobody waits."""
        if not self.held:
            return None
        known = min((t for t in self._tenants.values() if t.held), key=lambda t: t.work)
        self.held -= 1
        self.trying = heappop(known.held)[2]
        return self.trying

    def check_idle(self) -> None:
        """AssertionError unless nobody waits and no work is left."""
        assert not self.held, "a request over its share was forgotten"
        assert self.trying is None, "a request that had waited was forgotten"
        assert abs(self._work) < 1e-3, f"work was never given back: {self._work}"
