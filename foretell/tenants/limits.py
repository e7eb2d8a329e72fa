"""The limits of one tenant."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of one tenant, across all schedulers; 0: no limit."""

    models: Sequence[str] = ()
    """Models that it may use; empty: all."""
    requests_per_min: int = 0
    tokens_per_min: int = 0
    """Tokens of prompts and answers together."""
    concurrency: int = 0
    """Requests in progress."""
    admin: bool = False
    """Whether it may see the requests of all tenants."""
    priority: int | None = None
    """The least number that its requests get as vLLM's priority; None: what they ask for."""
