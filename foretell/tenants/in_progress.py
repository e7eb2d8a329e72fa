"""A limit on the requests in progress, and when refused clients should retry."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from foretell.openai.errors import ApiError, retry_after

_SORTED_FOR_S = 1.0
"""The predicted ends are sorted at most this often, as many requests may be refused at once."""


class InProgress:
    """Counts the requests in progress and admits at most `limit` at a time. A request is in
    progress from before its body is read until its answer has ended."""

    def __init__(
        self,
        limit: int,
        wait_s: Callable[[int], float] = lambda number: 0.0,
        *,
        what: str = "requests",
        share: int = 4,
        refusal: tuple[int, str] = (429, "too_many_requests"),
    ) -> None:
        """`wait_s` predicts in how many seconds a number of those in progress will have ended. A
        tenant may hold up to `share` times as many places as are free: 4 leaves a fifth of all
        places to others, whatever one tenant sends (the dynamic threshold of shared buffers,
        Choudhury and Hahne 1998). `refusal`: the status and the code of the error."""
        self.limit = limit
        self._wait_s = wait_s
        self._what = what
        self._share = share
        self._status, self._code = refusal
        self.now = 0
        self._tenants: dict[str, int] = {}
        self._refused = 0
        """Refused requests for which no place has become free since, `limit` at most: after a
        flood, only few are retried."""

    def of(self, tenant: str) -> int:
        return self._tenants.get(tenant, 0)

    @contextmanager
    def place(self, tenant: str = "") -> Iterator[None]:
        """Hold a place while the block runs. Raises `ApiError`, by default 429, if none is free.
        `tenant`: whose place it is; "" if no key is needed and no tenants are distinguished."""
        self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)

    def take(self, tenant: str, number: int = 1) -> None:
        """Hold places until they are given back. Raises as `place` does."""
        held, free = self.of(tenant) + number, self.limit - self.now - number
        if free < 0 or (tenant and held > self._share * (free + 1)):
            # Later requests get a later time, so that they do not all retry at once.
            self._refused = min(self._refused + 1, self.limit)
            whose = f"{held - number} of your" if free >= 0 else f"{self.now}"
            raise ApiError(
                self._status,
                f"{whose} {self._what} are in progress already; retry later",
                code=self._code,
                headers=retry_after(self._wait_s(self._refused)),
            )
        self.now += number
        self._tenants[tenant] = held

    def give_back(self, tenant: str, number: int = 1) -> None:
        self.now -= number
        self._tenants[tenant] -= number
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        if self._refused:
            self._refused -= 1


class PredictedEnds:
    """When the requests in progress are predicted to end."""

    def __init__(self, ends_s: Callable[[], Iterable[float]], clock: Callable[[], float]) -> None:
        """`ends_s` returns the predicted ends, in seconds of `clock`."""
        self._ends_s = ends_s
        self._clock = clock
        self._sorted: list[float] = []
        self._sorted_s = float("-inf")

    def wait_s(self, number: int) -> float:
        """Return the seconds until `number` of them will have ended; 0 if no end is predicted."""
        now_s = self._clock()
        if now_s >= self._sorted_s + _SORTED_FOR_S:
            self._sorted, self._sorted_s = sorted(self._ends_s()), now_s
        if not self._sorted:
            return 0.0
        return max(0.0, self._sorted[min(number, len(self._sorted)) - 1] - now_s)
