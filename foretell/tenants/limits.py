"""What one caller may use."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """They hold for all schedulers together; 0: there is no limit."""

    models: Sequence[str] = ()
    """Models that it may use; empty: all."""
    requests_per_min: int = 0
    tokens_per_min: int = 0
    """Tokens of prompts and answers."""
    concurrency: int = 0
    """Requests in progress."""
    admin: bool = False
    """Whether it may see what becomes of the requests of all callers."""
    priority: int | None = None
    """vLLM's priority of its requests, which may ask for no smaller number; None: as they say."""
