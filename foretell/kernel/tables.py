"""Lookups in measured tables, all of which lie in one array (`tables.h`).

A row of `layout` describes one table: where its axes begin in `values`, and the lengths of up to
four axes. The axes follow each other, then come the seconds in row-major order. An axis has at
least two points; length zero means that there is no table. `latency.tables` packs them.
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

Most steps only decode. So `DECODE_STEPS` has, for each number of sequences from 0 on, what does not
depend on contexts: the seconds of everything but attention, and the place in the attention table:
the row before, and the fraction of the way to the next row.
"""
TABLES, LAYOUT_WIDTH = 8, 5

Values = NDArray[np.float64]
Layout = NDArray[np.int64]
