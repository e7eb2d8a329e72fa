"""The state of one engine as arrays.

A sequence is a row, and the number of the row, its *slot*, identifies it everywhere. Rows keep
their slot until they are dropped; the orders of running and of waiting sequences are kept apart.
The fields of each kind of row are described in `src/layout.h`.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import LAYOUTS

Record: TypeAlias = Any
"""One row of a structured array, passed by reference; numpy's type does not tell its fields."""

# The status of a sequence.
UNUSED, EXPECTED, WAITING, RUNNING, ENDED = 0, 1, 2, 3, 4

MOST_DRAFTS = 16
"""The most draft tokens that a sequence can have in one step."""

NONE = -1
"""Stands for no slot, no block and no content."""


def _rows() -> dict[str, np.dtype[np.void]]:
    found: dict[str, Any] = {}
    for kind, (size, fields) in LAYOUTS.items():  # nested kinds come before those that hold them
        names, offsets, kinds, dimensions = zip(*fields, strict=True)
        numbers = [found.get(each, each) for each in kinds]
        formats = list(zip(numbers, dimensions, strict=True))
        rows: Any = {"names": names, "offsets": offsets, "formats": formats, "itemsize": size}
        found[kind] = np.dtype(rows, align=True)
    return found


ROWS: dict[str, np.dtype[np.void]] = _rows()
"""All kinds of rows, by their names in compiled code."""
SEQUENCE = ROWS["Sequence"]
ENGINE = ROWS["Engine"]
"""The configuration of an engine, and its scheduler's counters."""
BLOCK = ROWS["Block"]
BATCH = ROWS["Counts"]
ENTRY = ROWS["Entry"]
PLACE = ROWS["Place"]
"""One block of a sequence: its content (NONE if unknown) and the KV block that holds it.

With several KV cache groups, the blocks of one index are adjacent, in the order of the groups.
"""
INPUT = ROWS["Input"]
"""A multimodal input of a sequence, or a content, which equal inputs share."""
CLOCK = ROWS["Clock"]
SUMS = ROWS["SteadySums"]
"""Sums over the requests that decode in bulk (`steady.h`)."""
MARK = ROWS["Mark"]
"""A count of output tokens, and when the last watched slot that gets so far has that many."""


class State(NamedTuple):
    """The scheduler of one engine, in few arrays, because every call passes all of them."""

    engine: Record
    """A record of `ENGINE`."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    """Slots of the running sequences, in the order of their admission."""
    blocks: NDArray[np.void]
    places: NDArray[np.void]
    """The blocks of all sequences; those of one begin at its `place`."""
    first_with: NDArray[np.int32]
    """The oldest block of each content; equal tokens in another group are another content."""
    inputs: NDArray[np.void]
    """Rows of `INPUT`: those of a sequence are consecutive, in order; contents lie among them."""


def new_record(dtype: np.dtype[np.void]) -> Record:
    """A writable record of zeros."""
    return np.zeros(1, dtype)[0]
