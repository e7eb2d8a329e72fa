"""Offline work for several engines: each gets its part of both ends of the order.

Section 5.5 of BlendServe. A part is made of runs of the depth-first order, so that only the
prefixes at a cut are computed on two engines.
"""

import numpy as np

from foretell.offline.ordering import Demand
from foretell.offline.tree import PrefixTree
from foretell.offline.work import Floats, Ints


def parts(tree: PrefixTree, order: Ints, demand: Demand, engines: int) -> list[Ints]:
    """The requests of each of `engines`, densest first, with about equal work on each.

    `order` is `ordering.blended`'s. What is denser than the whole file is cut into runs of equal
    seconds of computing, the rest into runs of equal seconds of reading; every engine gets one of
    each, and so the density of the file. ValueError for fewer than one engine.
    """
    if engines < 1:
        raise ValueError(f"engines must be positive, got {engines}")
    compute_s, memory_s = demand.compute_s[order], demand.memory_s[order]
    root = demand.density(tree)[tree.root]
    # The order falls in density but for what splitting could not afford: where most of it turns.
    dense = compute_s >= root * memory_s
    turn = int(np.argmax(np.concatenate(([0], np.cumsum(np.where(dense, 1, -1))))))
    left = np.split(order[:turn], _cuts(compute_s[:turn], engines))
    right = np.split(order[turn:], _cuts(memory_s[turn:], engines))
    return [np.concatenate(both) for both in zip(left, right, strict=True)]


def _cuts(seconds: Floats, engines: int) -> Ints:
    """Positions that divide `seconds` into runs of about the same sum."""
    upto = np.cumsum(seconds)
    total = float(upto[-1]) if len(upto) else 0.0
    goals = total * np.arange(1, engines) / engines
    return np.searchsorted(upto, goals, side="left").astype(np.int64)
