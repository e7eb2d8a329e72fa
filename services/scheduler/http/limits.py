"""How many requests may be in progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.scheduler.http.errors import ApiError, retry_after

BODY_DEADLINE_S = 60.0
"""Longest time that a request's body may take to arrive: it holds a place meanwhile."""


class InProgress:
    """Counts the requests being served and admits no more than `limit` at a time.

    A request is in progress from before its body is read until its answer has ended.
    """

    def __init__(self, limit: int, wait_s: Callable[[int], float] = lambda number: 0.0) -> None:
        """`wait_s` foretells in how many seconds a number of those in progress have ended."""
        self._limit = limit
        self._wait_s = wait_s
        self._now = 0
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

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place while the block runs; raises `ApiError` 429 if none is free.

        The block is the only way to give a place back: it happens once, whatever ends the block.
        """
        if self._now >= self._limit:
            # Who comes later is told a later time: not all come back at once.
            self._refused = min(self._refused + 1, self._limit)
            raise ApiError(
                429,
                f"{self._limit} requests are in progress already; retry later",
                code="too_many_requests",
                headers=retry_after(self._wait_s(self._refused)),
            )
        self._now += 1
        try:
            yield
        finally:
            assert self._now > 0, "a place was given back twice"
            self._now -= 1
            self._refused = max(0, self._refused - 1)


def body_too_long(limit_bytes: int) -> ApiError:
    """The error for a body of more than `limit_bytes`."""
    return ApiError(
        413, f"the request body is longer than {limit_bytes} bytes", code="request_too_large"
    )


def body_too_late() -> ApiError:
    """The error for a body that takes longer than `BODY_DEADLINE_S`."""
    return ApiError(408, f"the request body did not arrive within {BODY_DEADLINE_S:.0f} s")
