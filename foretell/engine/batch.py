"""One step of an engine: the tokens it computes, and its output."""

from dataclasses import dataclass

from foretell.engine.sequence import Sequence
from foretell.model import BatchShape


@dataclass(slots=True)
class Batch:
    """One step as scheduled."""

    scheduled: list[tuple[Sequence, int]]
    """Sequences and the tokens each computes, in scheduling order."""
    admitted: list[Sequence]
    """The scheduled sequences that left the waiting queue, in order."""
    preempted: list[Sequence]
    shape: BatchShape
    index: int
    """Which of the twin's two batches it is."""


@dataclass(slots=True)
class Outcome:
    """The output of a completed step."""

    sampled: list[Sequence]
    """Sequences that got one token, the finished ones included."""
    finished: list[Sequence]
