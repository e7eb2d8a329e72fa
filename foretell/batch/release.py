"""How many offline requests may be in flight, so that online targets still hold.

Each instance has its own window. It grows while the twin predicts that a request that arrives now
would get its first token in time, more slowly the less time is left, and shrinks in proportion to
the excess. It does not grow while requests queue in the engine. A prediction varies with the step
in flight, so the mean of the latest looks counts. A window shrinks only while no more requests are
in flight than the windows allow, because requests that were sent run to their end.

With a target, the mean is kept so far below it that nearly all of the latest looks would be in
time. Without one, the mean may be `FREE_FACTOR` times what was predicted for the instance when it
had only as many requests as there are online ones now: no target forbids it.

An engine that holds offline requests back itself gets enough of them to choose from. Within the
window, requests are spaced, so that those that end together are not replaced together: an online
request would wait for all of their prompts.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf

from foretell.batch.tuning import RELEASE

LOOK_S = 0.25
"""Seconds between two looks."""
UNKNOWN_WINDOW = 8.0
"""The window of an instance without a prediction."""
PLAIN_WINDOW = 64
"""Requests in flight to an endpoint that is no scheduler, and so does not report its load."""
LARGEST_WINDOW = 512.0
CANDIDATES = 128
"""Requests that are kept waiting in an engine that chooses among them."""
ALONE_FACTOR, FREE_FACTOR = 1.002, 1.5
"""The mean may be this many times the prediction without offline requests: the first even if it
misses a target, the second if there is no target. Results are in docs/adr/0010-cosched.md."""
ONLINE_FOR_S = 60.0
"""How long after the last online request another one is still expected at any moment."""


@dataclass(frozen=True, slots=True)
class InstanceView:
    """What is known of one instance now."""

    healthy: bool
    waiting: int | None = None
    """Requests in its queue; None: unknown."""
    ttft_s: float | None = None
    """The predicted TTFT of a request that arrives now; None: unknown."""
    running: int | None = None
    """Requests that it works on; None: unknown."""
    chooses: bool = False
    """Whether the engine keeps offline requests from delaying online ones."""
    max_num_seqs: int | None = None
    """Requests that it can work on at once; None: unknown."""


@dataclass(slots=True)
class _Instance:
    window: float = 1.0
    mean_s: float = 0.0
    """The mean TTFT predicted at the last looks; 0 before the first."""
    known_s: dict[int, float] = field(default_factory=dict)
    """The mean TTFT of more looks, by the bit length of the instance's number of requests."""
    looks: dict[int, int] = field(default_factory=dict)
    """The number of looks behind each of these means, up to `RELEASE.known_by_looks`."""

    def learn(self, ttft_s: float, requests: int) -> None:
        self.mean_s += (ttft_s - self.mean_s) / (RELEASE.mean_of_looks if self.mean_s else 1)
        place = requests.bit_length()
        looks = self.looks[place] = min(RELEASE.known_by_looks, self.looks.get(place, 0) + 1)
        before_s = self.known_s.get(place, 0.0)
        self.known_s[place] = before_s + (ttft_s - before_s) / looks

    def with_requests_s(self, requests: float) -> float:
        """The mean TTFT with about `requests` requests or the next fewer; else with the fewest."""
        place = max(1, round(requests)).bit_length()
        fewer = [each for each in self.known_s if each <= place]
        return self.known_s[max(fewer) if fewer else min(self.known_s)]


class Release:
    """The windows of all instances."""

    def __init__(self, ttft_target_s: float = inf) -> None:
        """`ttft_target_s`: the TTFT target of online requests; infinite: none."""
        self._target_s = ttft_target_s
        self._free = False
        self._instances: dict[str, _Instance] = {}
        self._ratios: deque[float] = deque(maxlen=RELEASE.spread_of_looks)
        """The predictions of the latest looks, each over its mean."""

    @property
    def window(self) -> int:
        """Offline requests that may be in flight to all instances together."""
        return int(sum(each.window for each in self._instances.values()))

    @property
    def instances(self) -> int:
        """Instances that offline requests may go to, as last seen."""
        return sum(each.window > 0 for each in self._instances.values())

    def observe(
        self,
        instances: Mapping[str, InstanceView],
        in_flight: int,
        *,
        unsent: int = 0,
        expects_online: bool = True,
    ) -> None:
        """Adjust the windows, with `in_flight` offline requests.

        Of these, `unsent` await their turn, so that no instance shows them yet. Without a target,
        no TTFT limits the windows while no online requests are expected.
        """
        self._free = self._target_s == inf and not expects_online
        used, settled = 2 * in_flight >= self.window, in_flight <= self.window
        requests = sum((seen.running or 0) + (seen.waiting or 0) for seen in instances.values())
        online = max(0, requests - (in_flight - unsent))
        self._instances = {name: self._instances.get(name, _Instance()) for name in instances}
        for name, seen in instances.items():
            known = self._instances[name]
            coming = replace(seen, waiting=(seen.waiting or 0) + ceil(unsent / len(instances)))
            known.window = self._adjusted(
                known,
                coming if seen.chooses else seen,
                online / len(instances),
                used=used,
                settled=settled,
            )

    def _adjusted(
        self, known: _Instance, seen: InstanceView, online: float, *, used: bool, settled: bool
    ) -> float:
        """The new window of an instance with about so many `online` requests."""
        window = known.window
        running, waiting = seen.running or 0, seen.waiting or 0
        if not seen.healthy:
            return 0.0
        if seen.chooses:
            short = CANDIDATES - waiting
            return min(LARGEST_WINDOW, max(1.0, window + (short if used or short < 0 else 0)))
        if seen.ttft_s is None:
            return UNKNOWN_WINDOW
        if not running + waiting:  # an idle engine answers sooner than one with any request
            return max(1.0, window)
        known.learn(seen.ttft_s, running + waiting)
        self._ratios.append(seen.ttft_s / known.mean_s)
        bound_s = self._bound_s(known, online)
        if known.mean_s > bound_s:
            return max(RELEASE.decrease, bound_s / known.mean_s) * window if settled else window
        # An engine that begins and ends many requests always has a few waiting.
        queue = waiting > 1 + running * RELEASE.queue_ratio
        return window if queue or not used else _grown(window, known.mean_s / bound_s, seen)

    def _bound_s(self, known: _Instance, online: float) -> float:
        """The upper bound of the mean predicted TTFT."""
        if self._free:
            return inf
        alone_s = known.with_requests_s(online)
        if self._target_s == inf:
            return alone_s * FREE_FACTOR
        # A target that is missed even without offline requests must not hold them back.
        return max(
            self._target_s / (RELEASE.between_looks * self._spread()), ALONE_FACTOR * alone_s
        )

    def _spread(self) -> float:
        """The factor on the mean that nearly all of the latest looks stayed below."""
        if len(self._ratios) < RELEASE.fewest_for_spread:
            return RELEASE.usual_spread
        return max(1.0, sorted(self._ratios)[ceil(RELEASE.in_time_ratio * len(self._ratios)) - 1])


class OnlineSeen:
    """Whether online requests are expected at any moment: if any came lately, to any replica."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] = {}
        """By replica: online requests so far, and when that number last changed, in seconds."""

    def expected(self, replica_id: str, arrived_total: int, now_s: float) -> bool:
        """Take a replica's count at `now_s` on a monotonic clock; whether more are expected."""
        if self._counts.get(replica_id, (-1, 0.0))[0] != arrived_total:
            self._counts[replica_id] = arrived_total, now_s
        return now_s - max(at_s for _, at_s in self._counts.values()) < ONLINE_FOR_S


def most_after(window: float) -> float:
    """The largest that a window can be at the next look."""
    return max(window + RELEASE.least_step, RELEASE.growth * window)


def _grown(window: float, mean_ratio: float, seen: InstanceView) -> float:
    """The next size of a window that may grow; the mean is `mean_ratio` of its bound."""
    pace = min(1.0, (1.0 - mean_ratio) / RELEASE.slower_below)
    grown = window + pace * (most_after(window) - window)
    most = RELEASE.slots_ratio * seen.max_num_seqs if seen.max_num_seqs else LARGEST_WINDOW
    return min(max(window, most), LARGEST_WINDOW, grown)


class Spacing:
    """Decides when each request is sent; a few that are late may be sent at once.

    Until the first answer they are `RELEASE.longest_gap_s` apart, so that a batch does not begin
    with a burst.
    """

    def __init__(self) -> None:
        self._took_s = inf
        self._next_s = 0.0

    def ended(self, took_s: float) -> None:
        """Learn that a request was answered after `took_s`."""
        known = self._took_s < inf
        self._took_s = (
            self._took_s + RELEASE.smoothing * (took_s - self._took_s) if known else took_s
        )

    def wait_s(self, window: int, now_s: float) -> float:
        """Reserve the next moment to send, with `window` allowed in flight; seconds until then."""
        gap_s = min(RELEASE.longest_gap_s, RELEASE.spacing_ratio * self._took_s / max(1, window))
        at_s = max(self._next_s, now_s - RELEASE.at_once * gap_s)
        self._next_s = at_s + gap_s
        return max(0.0, at_s - now_s)
