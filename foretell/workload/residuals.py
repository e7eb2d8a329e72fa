"""How the shipped length model was wrong on prompts that it never saw.

Lengths and quantiles are kept as ranks, so that they can be carried over to another distribution of
lengths: as P(length <= tokens) of what the model believed of all these answers together. So are
the lengths of prompts, as parts of those that are not longer.
What made the file is in the history up to commit d24fe6d (`tools/length/residuals.py`).
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
    """The true length of each answer and what was believed of it, as ranks from 0 to 1."""

    levels: tuple[float, ...]
    """Levels of the quantiles."""
    ranks: NDArray[np.float64]
    """(answers,), ascending: of the true lengths."""
    prompts: NDArray[np.float64]
    """(answers,): of the lengths of their prompts, among each other."""
    quantiles: NDArray[np.float64]
    """(answers, levels): of the quantiles."""
    made_by: str
    """The command, the data and the model."""


@cache
def shipped_residuals() -> LengthResiduals:
    """Those that come with the package."""
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
