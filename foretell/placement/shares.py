"""Fair sharing of the engines between tenants.

An engine serves its queue in order of arrival. Without fair sharing, the tenant with the most
requests would fill every queue, and all others would wait behind it. Requests of a tenant with more
than its share of the work in the engines are therefore placed only where there is room. Its other
requests wait here, where they delay no one; the tenant with the least work goes first.

Even without a queue, a full engine takes longer for a prompt: its steps are longer, and it may be
prefilling another prompt. Some engines are therefore left to tenants within their shares: as many
as the work of these tenants fills to `KEPT_FULLNESS`.

A share is an equal part of all work in the engines, among the tenants of the last minute. Work is
counted in tokens; the predicted output tokens count twice, as in Sheng et al., *Fairness in Serving
Large Language Models*, OSDI 2024. If there is only one tenant, it never waits here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from foretell.model import Load, RequestSpec
from foretell.policy import Urgency

PRESENT_S = 60.0
"""Seconds after its last request for which a tenant counts as present."""
MOST_HELD = 1000
"""The most requests that may wait for their tenants' shares."""
SPARE_SEATS, SPARE_BLOCKS = 1 / 16, 1 / 4
"""Parts of an engine's seats (`max_num_seqs`) and KV blocks that must be free for it to have room:
running requests grow, and when blocks run out the latest request is preempted."""
ON_THE_WAY = 1 / 8
"""An engine has room only while the requests on their way to it are at most this part of the
running ones: the load does not show what their prefills will take of the next steps."""
KEPT_FULLNESS = 1 / 4
"""How full the engines left to tenants within their shares would be with all work of these tenants:
low enough that two prefills seldom coincide."""
OUTPUT_WEIGHT = 2.0


def work_of(spec: RequestSpec) -> float:
    """Return the work of a request, in tokens."""
    return spec.prompt_tokens + OUTPUT_WEIGHT * spec.sequences * spec.length.expected_tokens


def has_room(load: Load | None) -> bool:
    """Whether an engine can take another request without making any request wait.

    An engine with an unknown load is assumed to have room.
    """
    if load is None:
        return True
    seats = load.running + load.reserved < (1 - SPARE_SEATS) * load.max_num_seqs
    used = load.used_blocks + load.waiting_prefill_blocks
    blocks = used < (1 - SPARE_BLOCKS) * max(1, load.total_blocks)
    return not load.waiting and load.reserved <= ON_THE_WAY * load.running and seats and blocks


def fullness(load: Load | None) -> float:
    """Return the used part of an engine's seats or KV blocks, whichever is larger; 0 if the load is
    unknown."""
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
    """The tenants of one scheduler: their work in the engines, and their waiting requests."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        """Ordered by their latest arrival, the oldest first."""
        self._tickets = count()
        self._work = 0.0
        self.held = 0
        """The number of requests that wait."""
        self.trying: str | None = None
        """The request that has waited and is being placed again."""

    def arrived(self, tenant: str, now_s: float) -> None:
        """Note a request of the tenant, and forget idle tenants that are no longer present."""
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
        """Return how many of the engines with these loads are left to tenants within their shares;
        never all."""
        share = self._work / max(1, len(self._tenants))
        within = sum(each.work for each in self._tenants.values() if each.work <= share)
        full = sum(map(fullness, loads)) * within / max(1.0, self._work)
        return max(0, min(round(full / KEPT_FULLNESS), len(loads) - 1))

    def must_wait(self, tenant: str) -> bool:
        """Whether other requests of the tenant wait, which go first."""
        return bool(self._tenants[tenant].held)

    def sent(self, tenant: str, work: float) -> None:
        """Add work that was sent to an engine for the tenant."""
        self._tenants.setdefault(tenant, _Tenant(0.0)).work += work
        self._work += work

    def ended(self, tenant: str, work: float) -> None:
        """Subtract work of the tenant that has ended."""
        self._tenants[tenant].work -= work
        self._work -= work

    def hold(self, tenant: str, urgency: Urgency, key: str) -> None:
        """Let a request wait."""
        heappush(self._tenants[tenant].held, (urgency, next(self._tickets), key))
        self.held += 1

    def leave(self, tenant: str, key: str) -> None:
        """Remove a request that waits."""
        known = self._tenants[tenant]
        left = [waiter for waiter in known.held if waiter[2] != key]
        self.held -= len(known.held) - len(left)
        known.held = left
        heapify(left)

    def stop_trying(self, key: str) -> None:
        """Note that the request, if it is `trying`, is no longer being placed."""
        if self.trying == key:
            self.trying = None

    def take_next(self) -> str | None:
        """Take the most urgent request of the tenant with the least work; None if none waits."""
        if not self.held:
            return None
        known = min((t for t in self._tenants.values() if t.held), key=lambda t: t.work)
        self.held -= 1
        self.trying = heappop(known.held)[2]
        return self.trying

    def check_idle(self) -> None:
        """Raise AssertionError if any request waits or any work is left."""
        assert not self.held, "a request over its share was forgotten"
        assert self.trying is None, "a request that had waited was forgotten"
        assert abs(self._work) < 1e-3, f"work was never given back: {self._work}"
