"""The errors of the shipped length model on prompts that it never saw.

Lengths and quantiles are kept as ranks, so that they carry over to another distribution of lengths.
The rank is P(length <= tokens) in the mixture of the model's distributions for all these answers. A
prompt's rank is the share of prompts that are not longer.
The code that made the file is in the history up to commit d24fe6d (`tools/length/residuals.py`).
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

FILE = "residuals.npz"
SCALE = 65535.0
"""What a rank is multiplied by in the file."""


@dataclass(frozen=True, slots=True)
class LengthResiduals:
    """The true length of each answer and its estimate, as ranks from 0 to 1."""

    levels: tuple[float, ...]
    """Levels of the quantiles."""
    ranks: NDArray[np.float64]
    """(answers,): ranks of the true lengths, ascending."""
    prompts: NDArray[np.float64]
    """(answers,): ranks of the lengths of their prompts."""
    quantiles: NDArray[np.float64]
    """(answers, levels): ranks of the quantiles."""
    made_by: str
    """The command, the data and the model."""


@cache
def shipped_residuals() -> LengthResiduals:
    """The residuals that ship with the package."""
    with (
        (resources.files("foretell.workload") / FILE).open("rb") as file,
        np.load(file, allow_pickle=False) as found,
    ):
        return LengthResiduals(
            tuple(found["levels"].tolist()),
            found["ranks"] / SCALE,
            found["prompts"] / SCALE,
            found["quantiles"] / SCALE,
            str(found["made_by"]),
        )
