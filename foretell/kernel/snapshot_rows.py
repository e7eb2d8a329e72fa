"""Snapshots of engines: what is known of them from outside, as rows of numbers.

A snapshot shows an engine as last published: a header, and a row for each of its requests, first
those that run, in the order of admission, then those that wait, in the order in which they will be
admitted. `engine.snapshots` fills it from a published snapshot, `live.h` from a simulated
engine. Both say the same, and `forecasts.h` predicts from either. A row refers to nothing
outside its snapshot, so a snapshot can be copied, kept and sent as bytes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.layout import ROWS

REQUEST = ROWS["Request"]
"""One request in an engine."""

REQUESTS, RUNNING, FREE_BLOCKS, WAITING_BLOCKS, CERTAIN = range(5)
"""Places in `SNAPSHOT.figures`: requests, those of them that run, free KV blocks, blocks that those
who wait need, and whether the output lengths of all are certain (1) or not (0)."""
FIGURES = 5

STEPS, SHAPE = 2, 6
"""Most steps in flight, and the numbers that describe one: the fields of `model.BatchShape`."""

SNAPSHOT = ROWS["Snapshot"]
"""The header of a snapshot."""

ARRIVAL = ROWS["Arrival"]
"""A request on its way to an engine."""


class Snapshots(NamedTuple):
    """The snapshots of m engines, each with room for so many requests."""

    headers: NDArray[np.void]
    """(m,) of `SNAPSHOT`."""
    requests: NDArray[np.void]
    """(m, most requests) of `REQUEST`; `figures` says how many of them are in use."""
    inputs: NDArray[np.void]
    """(m, most inputs) of `layout.INPUT`: the contents, those of them that are cached in the order
    in which they would be dropped, then the inputs of the requests, in their order."""
