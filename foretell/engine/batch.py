"""Steps of an engine: the tokens they compute, and their output."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.engine.sequence import Sequence
from foretell.model import BatchShape


@dataclass(slots=True)
class StepBatch:
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
class StepOutcome:
    """The output of a completed step."""

    sampled: list[Sequence]
    """Sequences that got one token, including the finished ones."""
    finished: list[Sequence]


class FreeBlocks(NamedTuple):
    """Free KV blocks summed over time."""

    seconds: float
    blocks_s: float
    squared_blocks_s: float


class Made(NamedTuple):
    """Consecutive steps of which only the last one changed which sequences run."""

    shapes: NDArray[np.int64]
    """(steps, 5): each step's `BatchShape`."""
    admitted: list[Sequence]
    preempted: list[Sequence]
    finished: list[Sequence]
