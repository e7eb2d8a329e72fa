"""How long a request's body may be, and how long it may take."""

from foretell.services.scheduler.api.errors import ApiError

BODY_DEADLINE_S = 60.0
"""Longest time that a request's body may take to arrive: it holds a place meanwhile."""
BODY_PATIENCE_S = 20.0
LEAST_BODY_BYTES_PER_S = 1024
"""A body must have come at that rate, but for `BODY_PATIENCE_S`. It is the rule of Apache's
`mod_reqtimeout`, which is content with 500."""


def declared_bytes(length: str) -> int:
    """The number in a `content-length`, as large as it needs to be; 0 where it is none."""
    digits = length.lstrip("0")
    return int(digits[:19]) if digits.isascii() and digits.isdecimal() else 0


def body_too_long(limit_bytes: int) -> ApiError:
    """The error for a body of more than `limit_bytes`."""
    return ApiError(
        413, f"the request body is longer than {limit_bytes} bytes", code="request_too_large"
    )


def body_too_late() -> ApiError:
    """The error for a body that takes too long."""
    return ApiError(408, "the request body did not arrive in time")
