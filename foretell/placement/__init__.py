"""The placement core: events in, effects out, no I/O, no clock, no randomness of its own.

`PlacementCore.step(event, now_s)` takes one event (`foretell.placement.events`) and returns the
effects (`foretell.placement.effects`) that its driver has to carry out. The scheduler service
drives it with asyncio, the simulator with virtual time. The pattern is that of etcd's raft library
(`Step` and `Ready`) and of h11: a protocol without sockets.
"""

from foretell.placement.config import PlacementConfig
from foretell.placement.core import PlacementCore

__all__ = ["PlacementConfig", "PlacementCore"]
