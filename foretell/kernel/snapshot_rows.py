"""Snapshots of engines as rows of numbers.

A snapshot has a header and a row for each request: first the running ones in the order of
admission, then the waiting ones in the order in which they will be admitted. `engine.snapshots`
fills it from an engine's published snapshot, `live.h` from a simulated engine, both in the same
way; `forecasts.h` predicts from it. Rows refer to nothing outside their snapshot, so a snapshot can
be copied, kept and sent as bytes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.layout import ROWS

REQUEST = ROWS["Request"]
"""One request in an engine."""

REQUESTS, RUNNING, FREE_BLOCKS, WAITING_BLOCKS, CERTAIN = range(5)
"""Places in `SNAPSHOT.figures`: requests, running ones among them, free KV blocks, KV blocks that
the waiting ones need, and 1 if all output lengths are certain, otherwise 0."""
FIGURES = 5

STEPS, SHAPE = 2, 6
"""The most steps in flight, and the numbers of each: the fields of `model.BatchShape`."""

SNAPSHOT = ROWS["Snapshot"]
"""The header of a snapshot."""

ARRIVAL = ROWS["Arrival"]
"""A request on its way to an engine."""


class Snapshots(NamedTuple):
    """The snapshots of m engines, all with room for the same number of requests."""

    headers: NDArray[np.void]
    """(m,) of `SNAPSHOT`."""
    requests: NDArray[np.void]
    """(m, most requests) of `REQUEST`; `figures` says how many of them are in use."""
    inputs: NDArray[np.void]
    """(m, most inputs) of `layout.INPUT`: the contents, with cached ones in the order in which they
    would be evicted, then the inputs of the requests in their order."""
