"""Estimates unknown output lengths: which requests to sample, and what their answers teach.

Section 5.1 of BlendServe: one request in a hundred is answered first, and each other one is
expected to be as long as the sampled ones that share most of its prompt. Sampled requests are real
work: their answers are kept. A prior, such as a length model's, counts as a few samples.
"""

from dataclasses import dataclass

import numpy as np

from foretell.offline.tree import PrefixTree
from foretell.offline.work import Floats, Ints

SAMPLE_SHARE = 0.01
FEWEST = 32
"""Samples that a group of requests needs for an estimate of its own."""
_PRIOR_WEIGHT = 4.0  # samples that a prior counts as
_NEARLY_ALL = 0.9  # of the requests: a prefix that more of them share distinguishes none


@dataclass(frozen=True, slots=True)
class LengthMoments:
    """The estimated mean and mean square of output lengths, in tokens: (n,) each.

    The mean square is kept because the memory that a request reads grows with it.
    """

    mean: Floats
    square: Floats

    @staticmethod
    def known(tokens: Ints) -> "LengthMoments":
        """Lengths that are known, such as those of images and videos."""
        exact = tokens.astype(np.float64)
        return LengthMoments(exact, exact * exact)

    @staticmethod
    def guess(requests: int, tokens: float) -> "LengthMoments":
        """One exponential distribution for all, for when nothing is known."""
        return LengthMoments(np.full(requests, tokens), np.full(requests, 2.0 * tokens * tokens))

    def where_known(self, tokens: Ints) -> "LengthMoments":
        """These lengths, with `tokens`, (n,), in their place where those are known (above 0)."""
        exact = LengthMoments.known(tokens)
        known = tokens > 0
        return LengthMoments(
            np.where(known, exact.mean, self.mean), np.where(known, exact.square, self.square)
        )


def sampled(tree: PrefixTree, begin: float, known: Ints, share: float = SAMPLE_SHARE) -> Ints:
    """Requests to answer first, ascending: evenly spaced in depth-first order.

    `begin`, in [0, 1), is the random draw that says where the spacing begins. `known`, (n,): output
    tokens, above 0 where they are known. The requests below each child of the root, and all lone
    ones together, get at least `FEWEST` samples, the largest groups first, while this no more than
    doubles the samples: a few long answers may be half of the work.
    """
    order = tree.first_seen()
    order = order[known[order] == 0]
    if not len(order):
        return np.zeros(0, np.int64)
    count = max(share * len(order), min(FEWEST, len(order)))
    chosen = [_evenly(order, count, begin)]
    group = _top(tree)[order]
    tops, sizes = np.unique(group, return_counts=True)
    small = (sizes >= FEWEST) & (share * sizes < FEWEST)
    largest = tops[small][np.argsort(-sizes[small], kind="stable")]
    for top in largest[: int(count) // FEWEST].tolist():
        chosen.append(_evenly(order[group == top], FEWEST, begin))
    return np.unique(np.concatenate(chosen))


def strata(tree: PrefixTree, samples: Ints, fewest: int = FEWEST) -> Ints:
    """(n,): the number, from 0 on, of the group with which each request is estimated.

    A request belongs to the longest prefix of its prompt that `fewest` samples share.
    """
    hits = np.zeros(tree.items)
    hits[samples] = 1.0
    enough = tree.sums(hits) >= fewest
    enough[: tree.requests] = False
    groups = tree.inherited(enough)[: tree.requests]
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def sources(tree: PrefixTree, fewest: int = FEWEST) -> Ints:
    """(n,): the number, from 0 on, of each request's group. Requests of a group begin alike, for
    example with the same system prompt.

    A group is at least `fewest` requests below one first shared prefix; one that nearly all
    requests share is skipped, and the next counts. The others form two groups: those that share any
    prefix, and those that share none.
    """
    size = tree.sums(tree.of_leaves(np.ones(tree.requests)))
    size[: tree.requests] = 0.0
    common = size > _NEARLY_ALL * tree.requests
    common[tree.root] = True
    parent = np.maximum(tree.parent, 0)
    begins = (size >= fewest) & ~common & common[parent]
    begins[tree.root] = False
    found = tree.inherited(begins)[: tree.requests]
    shares = ~common[tree.parent[: tree.requests]]
    found = np.where(begins[found] | ~shares, found, tree.items)
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def learnt(stratum: Ints, samples: Ints, tokens: Ints, prior: LengthMoments) -> LengthMoments:
    """Estimate all lengths after the `samples` have turned out to be `tokens` long."""
    count = int(stratum.max(initial=0)) + 1
    seen = tokens.astype(np.float64)
    groups = stratum[samples]
    number, total, squares = (
        np.bincount(groups, weights, count) for weights in (np.ones(len(seen)), seen, seen * seen)
    )
    weight = _PRIOR_WEIGHT + number[stratum]
    mean = (_PRIOR_WEIGHT * prior.mean + total[stratum]) / weight
    square = (_PRIOR_WEIGHT * prior.square + squares[stratum]) / weight
    mean[samples], square[samples] = seen, seen * seen
    return LengthMoments(mean, square)


def _top(tree: PrefixTree) -> Ints:
    """(n,): the child of the root that each request descends from; the root for lone requests."""
    tops = (tree.parent == tree.root) & (np.arange(tree.items) > tree.root)
    return tree.inherited(tops)[: tree.requests]


def _evenly(requests: Ints, count: float, begin: float) -> Ints:
    step = len(requests) / max(1.0, count)
    places = np.arange(begin * step, len(requests), step).astype(np.int64)
    return requests[places] if len(places) else requests[:1]
