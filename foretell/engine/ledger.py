"""The ledger of the requests that are sent to one engine, beside what the engine publishes.

It keeps the requests on their way that no snapshot has shown yet, the usual delay of that way, the
recent arrival rate, and the prefixes that are probably in the engine's cache.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import inf

from foretell.engine.delay import UsualDelay
from foretell.engine.expected import RecentArrivals
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.questions import ExpectedArrival, arrival
from foretell.length.distribution import Row
from foretell.model import OFFLINE_PRIORITY, EngineConfig, RequestSpec

MAX_RESERVATIONS = 10_000
MAX_OBSERVED = 20_000
LOOK_AHEAD_S, MOST_EXPECTED = 60.0, 64
"""How many seconds ahead unannounced requests are expected, and at most how many."""


@dataclass(slots=True)
class Observed:
    """One request as snapshots have shown it."""

    since_s: float = 0.0
    """The time of its reservation, or of its arrival if a snapshot showed it before that."""
    ttft_s: float = 0.0
    """From `since_s` to the first snapshot with a token of it; 0 when not seen."""
    output_tokens: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache. Known only if `prefix` is known and a snapshot
    showed the request running; there may be none of a request that takes few steps."""
    length_row: Row = ()
    """Its predicted length distribution."""
    reserved: bool = False
    """Whether it was reserved, so that the prefix index has it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A dispatched request that no snapshot has shown yet."""

    request: RequestSpec
    made_s: float
    expires_s: float
    row: ExpectedArrival
    """The arrival for forecasts: it joins the queue one dispatch delay after `made_s`."""


class Ledger:
    """The requests of one engine. Every collection is bounded; time is an argument."""

    def __init__(self, dispatch_delay_s: float, prefixes: PrefixIndex | None = None) -> None:
        """`dispatch_delay_s` is the time from a prediction to the request's arrival in the engine's
        queue, assumed until it is learned from the snapshots that first show reserved requests.

        Without `prefixes` no prefix is expected to be found in the engine's cache.
        """
        self.prefixes = prefixes
        self.reserved = 0
        """Sequences of the reservations."""
        self.dispatch_delay_s = dispatch_delay_s
        """Seconds from a prediction to the request's arrival in the engine's queue, as learned."""
        self._delay = UsualDelay(dispatch_delay_s)
        self._arrivals = RecentArrivals()
        self._co_schedules = False
        self._reservations: OrderedDict[str, Reservation] = OrderedDict()
        self._observed: OrderedDict[str, Observed] = OrderedDict()
        self._first_expiry_s = inf

    def reserved_blocks(self, config: EngineConfig) -> int:
        """KV blocks that the prompts of the reservations need on an engine with `config`."""
        if not self._reservations:
            return 0
        requests = [reservation.request for reservation in self._reservations.values()]
        return sum([r.sequences * config.blocks_for(r.prompt_tokens) for r in requests])

    def rows(self) -> list[ExpectedArrival]:
        """The reservations as arrivals for forecasts, in the order in which they were made.

        Call `expire` first to drop those that have expired."""
        if not self._reservations:
            return []
        return [reservation.row for reservation in self._reservations.values()]

    def expected(self, at_s: float) -> list[ExpectedArrival]:
        """The requests that will probably arrive after `at_s` without having been announced."""
        row = self._arrivals.expected(at_s, at_s + LOOK_AHEAD_S, MOST_EXPECTED)
        return [row] if row else []

    def cached_tokens(self, request: RequestSpec) -> int:
        """Tokens of the request's prompt that the engine is believed to find in its cache."""
        if self.prefixes is None:
            return request.cached_tokens
        return max(self.prefixes.find(request), request.cached_tokens)

    def observed(self, request_id: str) -> Observed | None:
        """A request that has not ended, as snapshots have shown it; None if none has shown it."""
        return self._observed.get(request_id)

    def is_reserved(self, request_id: str) -> bool:
        """Whether the request is on its way and no snapshot has shown it."""
        return request_id in self._reservations

    def restart(self, prefixes: PrefixIndex | None, *, co_schedules: bool = False) -> None:
        """Forget what snapshots of the engine's previous run have shown."""
        self._co_schedules = co_schedules
        self._observed.clear()
        self.prefixes = prefixes

    def reserve(
        self,
        request: RequestSpec,
        length_row: Row,
        made_s: float,
        now_s: float,
        expires_s: float = inf,
    ) -> int:
        """Count `request` as on its way, unless a snapshot has already shown it.

        It joins the engine's queue a dispatch delay after `made_s`. A request may be reserved again
        with a better length estimate; it is counted once. Returns how many tokens of its prompt
        the engine is believed to find in its cache.
        """
        before, seen = self._drop(request.request_id), self._observed.get(request.request_id)
        if before is not None:
            cached_tokens = before.request.cached_tokens
        elif (seen is not None and seen.reserved) or self.prefixes is None:
            cached_tokens = 0
        else:
            cached_tokens = self.prefixes.reserve(request)
        if cached_tokens > request.cached_tokens:
            request = request._replace(cached_tokens=cached_tokens)
        if seen is not None:
            seen.reserved = True
            seen.length_row = length_row  # a distribution; the engine was told only a number
            return request.cached_tokens
        if before is None:
            for _ in range(request.sequences):
                self._note(request, now_s)
        row = arrival(request, length_row, made_s)
        self._reservations[request.request_id] = Reservation(request, made_s, expires_s, row)
        self.reserved += request.sequences
        self._first_expiry_s = min(self._first_expiry_s, expires_s)
        if len(self._reservations) > MAX_RESERVATIONS:
            self._drop(next(iter(self._reservations)))
        return request.cached_tokens

    def expire(self, now_s: float) -> None:
        """Drop expired reservations, and let a long unobserved dispatch delay fade."""
        self.dispatch_delay_s = self._delay.at(now_s)
        if now_s < self._first_expiry_s:
            return
        for key, reservation in list(self._reservations.items()):
            if reservation.expires_s <= now_s:
                self._drop(key)
                if self.prefixes is not None:
                    self.prefixes.ended(key, answered=False)
        alive = (reservation.expires_s for reservation in self._reservations.values())
        self._first_expiry_s = min(alive, default=inf)

    def meet(
        self, request: RequestSpec, at_s: float, arrived_s: float, joined_after_s: float | None
    ) -> Observed:
        """Note a request that a snapshot shows for the first time, or first since its reservation.

        The snapshot is of `at_s`. The request arrived in the engine at `arrived_s` and joined the
        queue after `joined_after_s`, which is None if unknown.
        """
        reservation = self._drop(request.request_id)
        seen = self._observed.get(request.request_id)
        if seen is None and reservation is None:
            self._note(request, at_s)
        if seen is None:
            seen = Observed(arrived_s, prompt_tokens=request.prompt_tokens)
            self._observed[request.request_id] = seen
            if len(self._observed) > MAX_OBSERVED:
                self._observed.popitem(last=False)
        if reservation is not None:
            seen.reserved = True
            seen.length_row = reservation.row.length
            seen.since_s = reservation.made_s
            if joined_after_s is not None:
                made_s = reservation.made_s
                self._delay.learn(joined_after_s - made_s, at_s - made_s, at_s)
                self.dispatch_delay_s = self._delay.at(at_s)
        return seen

    def admitted(self, request_id: str, cached_tokens: int, prompt_tokens: int) -> None:
        """Note that the engine runs the request and found `cached_tokens` of its prompt cached."""
        if self.prefixes is not None:
            self.prefixes.admitted(request_id, cached_tokens, prompt_tokens)
        if (seen := self._observed.get(request_id)) is not None:
            seen.cached_tokens = cached_tokens

    def complete(self, request_id: str, *, answered: bool = False) -> Observed:
        """Forget a request that has ended and return what snapshots showed of it.

        `answered`: some of its output came, so it ran, even if no snapshot has shown that yet.
        """
        self._drop(request_id)
        if self.prefixes is not None:
            self.prefixes.ended(request_id, answered=answered)
        return self._observed.pop(request_id, None) or Observed()

    def _note(self, request: RequestSpec, at_s: float) -> None:
        if self._co_schedules and request.priority == OFFLINE_PRIORITY:
            return  # offline arrivals only get what online requests leave: not worth expecting
        self._arrivals.note(
            request.prompt_tokens,
            request.length.expected_tokens,
            at_s,
            request.cached_tokens,
            (request.ttft_target_s, request.tpot_target_s),
        )

    def _drop(self, request_id: str) -> Reservation | None:
        reservation = self._reservations.pop(request_id, None)
        if reservation is not None:
            self.reserved -= reservation.request.sequences
        return reservation
