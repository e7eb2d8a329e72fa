"""Bounds of time and size that are no settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProvisionerTuning:
    """Bounds far from usual values; they were chosen, not measured."""

    answer_s: float = 3.0
    """Longest time that an engine, predictor, scheduler or batch service may take to answer."""
    webhook_answer_s: float = 5.0
    find_s: float = 5.0
    """Longest time that a driver may take to find what runs."""
    order_s: float = 120.0
    """Longest time that an order may take, including an engine's graceful shutdown."""
    act_s: float = 60.0
    """Longest time for carrying out a decision; after it, the decision counts as failed."""
    standby_s: float = 1.0
    """Longest pause between two attempts of a standby to take the lease."""
    down_s: float = 15.0
    """A ready engine that answers no health probe for this long counts as warming again."""
    grace_s: float = 1.0
    """Time for calls in progress to end at shutdown."""
    webhook_pause_s: float = 60.0
    """The pause doubles with each attempt that fails, from one second up to this."""
    webhook_tolerance_s: float = 60.0
    """Longest time by which an answer's timestamp may be off: an older answer is a replay."""
    status_bytes: int = 4 << 20
    platform_answer_bytes: int = 8 << 20
    webhook_answer_bytes: int = 64 << 10
    record_bytes: int = 32 << 20
    """Size at which the file of decisions is rotated; one old file is kept."""
    latest_decisions: int = 100
    """Decisions that `/status` shows."""
    keda_calls: int = 64
    """Calls and streams at once; KEDA keeps two streams for each ScaledObject."""


TUNING = ProvisionerTuning()
