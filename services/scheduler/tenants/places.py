"""How many requests may be in progress."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from foretell.services.scheduler.api.errors import ApiError, retry_after


class InProgress:
    """Counts the requests being served and admits no more than `limit` at a time.

    A request is in progress from before its body is read until its answer has ended.
    """

    def __init__(
        self,
        limit: int,
        wait_s: Callable[[int], float] = lambda number: 0.0,
        *,
        what: str = "requests",
        share: int = 4,
    ) -> None:
        """`wait_s` foretells in how many seconds a number of those in progress have ended.

        A tenant may hold up to `share` times as many places as are free: 4 leave a fifth of all to
        others, however greedy one of them is (the dynamic threshold of shared buffers, Choudhury
        and Hahne 1998).
        """
        self._limit = limit
        self._wait_s = wait_s
        self._what = what
        self._share = share
        self._now = 0
        self._tenants: dict[str, int] = {}
        """Places that each holds."""
        self._refused = 0
        """Those who were told to come back, and for whom no place has become free since; no more of
        them than there are places, as after a flood few do come back."""

    @property
    def limit(self) -> int:
        """The most requests that may be in progress."""
        return self._limit

    @property
    def now(self) -> int:
        return self._now

    def of(self, tenant: str) -> int:
        """The places that a tenant holds."""
        return self._tenants.get(tenant, 0)

    def place(self, tenant: str = "") -> AbstractContextManager[None]:
        """Hold a place while the block runs; raises `ApiError` 429 as it begins if none is free.

        `tenant`: for whom; "" where no key is needed, and all are one. The block is the only way to
        give a place back: it happens once, whatever ends the block.
        """
        return _Place(self, tenant)

    def take(self, tenant: str) -> None:
        """For `place` alone."""
        held, free = self.of(tenant), self._limit - self._now
        if free <= 0 or (tenant and held >= self._share * free):
            # Who comes later is told a later time: not all come back at once.
            self._refused = min(self._refused + 1, self._limit)
            whose = f"{self._limit}" if free <= 0 else f"{held} of your"
            raise ApiError(
                429,
                f"{whose} {self._what} are in progress already; retry later",
                code="too_many_requests",
                headers=retry_after(self._wait_s(self._refused)),
            )
        self._now += 1
        self._tenants[tenant] = held + 1

    def give_back(self, tenant: str) -> None:
        """For `place` alone."""
        self._now -= 1
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        if self._refused:
            self._refused -= 1


class _Place(AbstractContextManager[None]):
    """One place; a generator would take three times as long."""

    __slots__ = ("_held", "_of", "_tenant")

    def __init__(self, of: InProgress, tenant: str) -> None:
        self._of, self._tenant = of, tenant
        self._held = False

    def __enter__(self) -> None:
        self._of.take(self._tenant)
        self._held = True

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._held = False
            self._of.give_back(self._tenant)
