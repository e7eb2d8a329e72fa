"""Engines as an API server of Kubernetes tells them: its protocol, without I/O.

The caller of `Watch`, in this order, for ever: send the request that `ask()` names; give every
page of a list to `page`, every event of a watch to `event`; call `ended` or `failed` when the
answer is over, and wait for `pause_s`. Whenever `page` or `event` returns true, `endpoints()` may
have changed.
"""

from foretell.discovery.endpoints import Endpoint, Found, of_endpoint_slice, of_pod
from foretell.discovery.watch import Ask, ProtocolError, Refused, Watch

__all__ = [
    "Ask",
    "Endpoint",
    "Found",
    "ProtocolError",
    "Refused",
    "Watch",
    "of_endpoint_slice",
    "of_pod",
]
