"""Expected arrivals: how many requests of which size an engine will probably get.

A request shares its engine with those that arrive while it runs. A forecast without later arrivals
is too low, by about a fifth of the e2e latency at 70% utilisation (measured, see
docs/adr/0001-one-twin.md). Which requests come is unknown, but their rate and their sizes are
about the same as a moment ago.
"""

from collections.abc import Sequence
from math import ceil, exp
from zlib import crc32

from foretell.engine.questions import ExpectedArrival
from foretell.length.distribution import Row, certain

MEMORY_S = 20.0
"""Time constant of the rate. Between 2 and 100 s it makes next to no difference to the errors."""
_UNSEEN_S = 2.0  # of silence assumed before the first arrival: one request makes no rate
_SIZE_WEIGHT = 1 / 64  # of the newest request in the mean sizes
_KEY = crc32(b"expected")


def still_expected(rows: Sequence[ExpectedArrival], now_s: float) -> Sequence[ExpectedArrival]:
    """The expected arrivals without those before `now_s`."""
    last_s = (row.at_s + (row.sequences - 1) * row.every_s for row in rows)
    return [_from(row, now_s) for row, at_s in zip(rows, last_s, strict=True) if at_s >= now_s]


def _from(row: ExpectedArrival, now_s: float) -> ExpectedArrival:
    if row.at_s >= now_s:
        return row
    passed = min(ceil((now_s - row.at_s) / row.every_s), row.sequences - 1)
    at_s = row.at_s + passed * row.every_s
    return row._replace(at_s=at_s, sequences=row.sequences - passed)


class RecentArrivals:
    """The rate and the mean size of one engine's arrivals, with exponential decay.

    Constant in time and space. Times are seconds of one clock; an arrival that is noted out of
    order counts as simultaneous with the latest one.
    """

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        if memory_s <= 0:
            raise ValueError(f"memory_s must be positive, got {memory_s}")
        self._memory_s = memory_s
        self._first_s = 0.0
        self._latest_s = 0.0
        self._weight = 0.0  # of all arrivals as of the latest, 1 each when fresh
        self._count = 0
        self._prompt_tokens = 0.0
        self._output_tokens = 0.0
        self._cached_tokens = 0.0
        self._targets_s = 0.0, 0.0
        self._usual: tuple[Row, tuple[float, float, int, int, int, int, int]] | None = None

    def note(
        self,
        prompt_tokens: int,
        output_tokens: float,
        at_s: float,
        cached_tokens: int = 0,
        targets_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Note a sequence of this size that is on its way to the engine, or has come.

        The engine is expected to have `cached_tokens` of its prompt in its cache. `targets_s` are
        its targets for TTFT and TPOT, 0 without; only those of the latest arrival are kept.
        """
        self._targets_s, self._usual = targets_s, None
        if not self._count:
            self._first_s = self._latest_s = at_s
        at_s = max(at_s, self._latest_s)
        self._weight = 1.0 + self._weight * self._faded(at_s - self._latest_s)
        self._latest_s = at_s
        self._count += 1
        # A plain mean at first, so that the first request's size does not linger.
        share = max(_SIZE_WEIGHT, 1.0 / self._count)
        self._prompt_tokens += share * (prompt_tokens - self._prompt_tokens)
        self._output_tokens += share * (output_tokens - self._output_tokens)
        self._cached_tokens += share * (cached_tokens - self._cached_tokens)

    def rate_per_s(self, now_s: float) -> float:
        """Arrivals per second; 0 before the first.

        With weights exp(-age / memory), a steady rate r gathers r * memory * (1 - exp(-T / memory))
        in T seconds.
        """
        if not self._count:
            return 0.0
        weight = self._weight * self._faded(max(0.0, now_s - self._latest_s))
        watched_s = max(0.0, now_s - self._first_s) + _UNSEEN_S
        return weight / (self._memory_s * (1.0 - self._faded(watched_s)))

    def expected(self, now_s: float, until_s: float, most: int) -> ExpectedArrival | None:
        """At most `most` sequences of the mean size, evenly spaced from `now_s` on to `until_s`.

        None if none is expected. Their lengths count as certain. The i-th arrives in the middle of
        the i-th interval of 1 / rate seconds.
        """
        rate = self.rate_per_s(now_s)
        count = min(most, round(rate * max(0.0, until_s - now_s)))
        if count <= 0:
            return None
        if self._usual is None:
            prompt, output = max(1, round(self._prompt_tokens)), max(1, round(self._output_tokens))
            request = prompt, output, 0, round(self._cached_tokens), _KEY
            self._usual = certain(float(output)), (*self._targets_s, *request)
        length, others = self._usual
        return ExpectedArrival(length, now_s + 0.5 / rate, 1.0 / rate, *others, count)

    def _faded(self, seconds: float) -> float:
        return exp(-seconds / self._memory_s)
