"""How an engine with requests of both classes stands at one moment."""

from typing import NamedTuple


class Look(NamedTuple):
    """What is noted every second of virtual time; blocks are of the KV cache."""

    at_s: float
    online: int
    """Running requests."""
    offline: int
    hits: int
    """Offline prompt tokens found cached since the last look."""
    looked_up: int
    """All offline prompt tokens of requests that were admitted since the last look."""
    held_online: int
    """Blocks of running requests."""
    held_offline: int
    left_online: int
    """Cached blocks that nobody holds and online requests have left."""
    left_offline: int
    usual_online: float
    """Blocks for online requests: mean + 2 deviations."""
