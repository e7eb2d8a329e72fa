"""Lookups in measured tables, all of which lie in one array (`tables.h`).

A row of `layout` describes one table: where its axes begin in `values`, and how long each of up to
four axes is. The axes follow each other and the seconds follow the axes, in row-major order. No
axis is shorter than two; a table of length zero is not there. `latency.tables` packs them.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import curve_s, dense_s, grid2_s, grid4_s, locate

__all__ = [
    "LAYOUT_WIDTH",
    "TABLES",
    "Layout",
    "Values",
    "curve_s",
    "dense_s",
    "grid2_s",
    "grid4_s",
    "locate",
]

TOKENS, SEQUENCES, RANKS, GRAPH_SIZES, PREFILL, DECODE, MIXED, DECODE_STEPS = range(8)
"""Rows of `layout`: the fields of `model.StepTables`. Graph sizes are an axis without seconds.

Decode steps are what most steps are, so for each number of sequences, from 0 on, the three things
are kept that do not depend on their contexts: the seconds of everything but attention, and where in
the table of attention they lie: the row before, and the share of the way to the next.
"""
TABLES, LAYOUT_WIDTH = 8, 5

Values = NDArray[np.float64]
Layout = NDArray[np.int64]
