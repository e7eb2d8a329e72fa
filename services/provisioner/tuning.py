"""Bounds of time and size that nobody has to set."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Each is far from what is usual: they were chosen, not measured."""

    answer_s: float = 3.0
    """Longest time that an engine, a predictor, a scheduler or the batch service may take."""
    webhook_answer_s: float = 5.0
    find_s: float = 5.0
    """Longest time that a driver may take to say what runs."""
    order_s: float = 120.0
    """Longest time that an order may take: an engine is given time to end by itself."""
    act_s: float = 60.0
    """Time after which what a decision asks for counts as failed."""
    standby_s: float = 1.0
    """Longest pause between two looks of a standby at the lease."""
    down_s: float = 15.0
    """A ready engine that has not answered its health probe for so long counts as warming again."""
    grace_s: float = 1.0
    """Time for calls in progress to end at shutdown."""
    webhook_pause_s: float = 60.0
    """The pause doubles with each attempt that fails, from one second up to this."""
    webhook_tolerance_s: float = 60.0
    """Most that the clock of an answer may differ from ours: what is older is a replay."""
    status_bytes: int = 4 << 20
    platform_answer_bytes: int = 8 << 20
    webhook_answer_bytes: int = 64 << 10
    record_bytes: int = 32 << 20
    """Size at which the file of decisions is rotated; one old file is kept."""
    latest_decisions: int = 100
    """Decisions that `/status` shows."""
    keda_calls: int = 64
    """Calls and streams at once; KEDA keeps two streams for each ScaledObject."""


TUNING = Tuning()
