"""Discovery of engines by the API of Kubernetes: its protocol, without I/O.

The caller of `Watch` repeats these steps: send the request that `ask()` returns; pass each page of
a list to `page` and each event of a watch to `event`; call `ended` or `failed` when the answer is
over; wait for `pause_s`. Whenever `page` or `event` returns True, `endpoints()` may have changed.
"""

from foretell.discovery.endpoints import EngineEndpoint, FoundEndpoints, of_endpoint_slice, of_pod
from foretell.discovery.watch import Ask, ProtocolError, Refused, Watch

__all__ = [
    "Ask",
    "EngineEndpoint",
    "FoundEndpoints",
    "ProtocolError",
    "Refused",
    "Watch",
    "of_endpoint_slice",
    "of_pod",
]
