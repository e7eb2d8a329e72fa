"""What a step-time model is, and the simplest: a linear function of the batch shape."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from foretell.kernel import step_time as kernel
from foretell.kernel.step_time import FLOOR, StepTime
from foretell.kernel.tables import LAYOUT_WIDTH, TABLES
from foretell.latency.features import FEATURES
from foretell.model import BatchShape

FLOOR_S = 1e-6
"""The least seconds of a step where nothing else is known: no step takes no time."""

_NO_VALUES = np.zeros(0)
_NO_TABLES = np.zeros((TABLES, LAYOUT_WIDTH), dtype=np.int64)


class StepTimeModel(Protocol):
    """How long a step takes. Implementations are deterministic between updates."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of `shape`; positive."""
        ...

    def decode_run_s(self, shape: BatchShape, steps: int) -> float:
        """Seconds of `steps` consecutive pure-decode steps that begin with `shape`.

        Each step adds one token to every sequence, so `decode_pairs` grows by `decode_seqs`.
        """
        ...

    def packed(self) -> StepTime:
        """The model as it is now, for compiled code; not to be written to."""
        ...


class CompiledStepTime:
    """A `StepTimeModel` by its arrays: the arithmetic is the kernel's."""

    __slots__ = ()

    def packed(self) -> StepTime:
        raise NotImplementedError

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of `shape`; with data-parallel ranks, of equal ones."""
        return kernel.step_s(self.packed(), *sums(shape))

    def decode_run_s(self, shape: BatchShape, steps: int) -> float:
        """Seconds of `steps` pure-decode steps from `shape`; costs the same for any number."""
        return kernel.decode_run_s(self.packed(), shape.decode_seqs, shape.decode_pairs, steps)

    def ranks_step_s(self, shapes: Sequence[BatchShape]) -> float:
        """Seconds of one step that data-parallel ranks of `shapes` take together.

        Each waits for the slowest before the experts, and the experts see the tokens of all.
        """
        model = self.packed()
        own = max(kernel.own_s(model, *sums(shape)) for shape in shapes)
        mean = sum(shape.tokens for shape in shapes) / len(shapes)
        return max(float(model.coefficients[FLOOR]), own + kernel.ranks_s(model, mean))


@dataclass(frozen=True, slots=True)
class LinearStepTime(CompiledStepTime):
    """`sum(coefficient * feature)`, never below `floor_s`."""

    coefficients_s: tuple[float, ...]
    """Seconds per unit of each of `FEATURES`."""
    floor_s: float = FLOOR_S
    _packed: StepTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.coefficients_s) != len(FEATURES):
            raise ValueError(f"need {len(FEATURES)} coefficients, got {len(self.coefficients_s)}")
        coefficients = np.array((*self.coefficients_s, self.floor_s, 0.0))
        object.__setattr__(self, "_packed", StepTime(coefficients, _NO_VALUES, _NO_TABLES))

    def packed(self) -> StepTime:
        return self._packed


def sums(shape: BatchShape) -> tuple[int, int, int, int, int]:
    """The fields of `shape` in their order, as the kernel takes them."""
    return (
        shape.prefill_seqs,
        shape.prefill_tokens,
        shape.prefill_pairs,
        shape.decode_seqs,
        shape.decode_pairs,
    )
