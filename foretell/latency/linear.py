"""Step-time models, and the simplest one: a linear function of the batch shape."""

from collections.abc import Sequence

import numpy as np

from foretell.kernel import step_time as kernel
from foretell.kernel.step_time import StepTime, Sums
from foretell.kernel.tables import LAYOUT_WIDTH, TABLES
from foretell.latency.features import FEATURES
from foretell.model import BatchShape

FLOOR_S = 1e-6
"""The default lower bound of a step's seconds, so that no step takes zero time."""

_NO_VALUES = np.zeros(0)
_NO_TABLES = np.zeros((TABLES, LAYOUT_WIDTH), dtype=np.int64)


class StepTimeModel:
    """How long a step takes. It holds the arrays of a model; the kernel does the arithmetic.

    Deterministic between updates.
    """

    __slots__ = ("_packed",)

    def __init__(self, packed: StepTime) -> None:
        self._packed = packed

    def packed(self) -> StepTime:
        """The current model as arrays for compiled code. Read-only."""
        return self._packed

    @property
    def coefficients_s(self) -> tuple[float, ...]:
        """Seconds per unit of each of `FEATURES`."""
        return tuple(self.packed().coefficients[: len(FEATURES)].tolist())

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of `shape`, positive. Data-parallel ranks are assumed to be equal."""
        return kernel.step_s(self.packed(), *sums(shape))

    def decode_run_s(self, shape: BatchShape, steps: int) -> float:
        """Seconds of `steps` pure-decode steps from `shape`, computed in constant time.

        Each step adds one token to every sequence, so `decode_pairs` grows by `decode_seqs`.
        """
        return kernel.decode_run_s(self.packed(), shape.decode_seqs, shape.decode_pairs, steps)


class LinearStepTime(StepTimeModel):
    """`sum(coefficient * feature)`, never below `floor_s`."""

    __slots__ = ()

    def __init__(self, coefficients_s: Sequence[float], floor_s: float = FLOOR_S) -> None:
        """`coefficients_s`: seconds per unit of each of `FEATURES`."""
        if len(coefficients_s) != len(FEATURES):
            raise ValueError(f"need {len(FEATURES)} coefficients, got {len(coefficients_s)}")
        coefficients = np.array((*coefficients_s, floor_s, 0.0))
        super().__init__(StepTime(coefficients, _NO_VALUES, _NO_TABLES))


def sums(shape: BatchShape) -> Sums:
    """The fields of `shape` as the kernel's tuple."""
    return Sums(
        shape.prefill_seqs,
        shape.prefill_tokens,
        shape.prefill_pairs,
        shape.decode_seqs,
        shape.decode_pairs,
        shape.draft_tokens,
    )
