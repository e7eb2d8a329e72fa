"""Tuning values of a scheduler that no deployment has to change."""

from dataclasses import dataclass, field

from foretell.placement import PlacementConfig


@dataclass(frozen=True, slots=True)
class Tuning:
    """How long a scheduler waits for its peers, and how often it looks after them.

    `placement` has the values that the simulator shares.
    """

    placement: PlacementConfig = field(default_factory=PlacementConfig)
    health_interval_s: float = 0.5
    """Pause between two health probes of an engine."""
    health_timeout_s: float = 3.0
    """Longest time of one probe: a vLLM engine answers between two steps, which may be long."""
    health_failures: int = 3
    """Failed probes in a row after which an engine is down: a busy one may be late for two."""
    connect_timeout_s: float = 2.0
    """Longest time to connect to an engine: it is near, and one that is slower has gone."""
    background_drain_s: float = 2.0
    """Time that feedback to the tagger and the log get at shutdown."""
    request_log_max_bytes: int = 64 << 20
    """Size at which the request log is rotated; one old file is kept."""
