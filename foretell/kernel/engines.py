"""Many engines in one call, each found by the addresses of its arrays (`engines.h`).

Handing an array over to compiled code takes time, and an engine has a dozen: together as much as a
step of it. So a row of `PLACED` says where an engine's arrays lie, and all engines are handed over
as one array. Whoever writes a row keeps the arrays alive and writes it anew when one is replaced.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import publish_all, run, step
from foretell.kernel.layout import check_rows
from foretell.kernel.live import Live

__all__ = ["PLACED", "Engines", "publish_all", "run", "step"]

AT = np.dtype([("address", np.int64), ("size", np.int64)])
"""Address and number of items of a contiguous array; one of more dimensions counts as flat."""

_MODEL = np.dtype([(name, AT) for name in ("coefficients", "values", "layout")])
PLACED = np.dtype(
    [(name, AT) for name in Live._fields]
    + [("model", _MODEL)]
    + [
        ("max_num_scheduled_tokens", np.int64),  # the limits that every step is checked against
        ("max_num_seqs", np.int64),
    ]
)
"""The addresses of the arrays of one engine's `Live` and of its step-time model."""

check_rows(At=AT, PlacedModel=_MODEL, Placed=PLACED)


class Engines(NamedTuple):
    """The m engines of a cluster."""

    placed: NDArray[np.void]
    """(m,): rows of `PLACED`."""
    ends_s: NDArray[np.float64]
    """(m,): the end of the oldest step in flight; infinite where there is none."""
    changes: NDArray[np.int64]
    """(m,): the number of changes of each engine's state."""
    changed_s: NDArray[np.float64]
    """(m,): the time of the latest change."""
    outcome: NDArray[np.int64]
    """(3,): the engine that made the latest step, and the outcome that `live.advance` filled in."""
