"""Orders a prefix tree by compute density: layer-wise sort and conditional split.

Section 5.2 of BlendServe, with its Algorithm 2 corrected: a request directly below the root is a
candidate too, and each piece that is cut off computes one prefix again.
"""

from dataclasses import dataclass

import numpy as np

from foretell.offline.tree import PrefixTree
from foretell.offline.work import Floats, Ints, WorkModel

SPLIT_SHARE = 0.01
"""Share of the tokens saved by prefix sharing that may be given up for a better order."""
CHUNK_REQUESTS = 32
"""Requests that share a prefix and are sorted as one."""
_MOST_ROUNDS = 8  # of splitting; the second seldom finds more than a few


@dataclass(frozen=True, slots=True)
class WorkDemand:
    """Seconds of computing and of reading memory, (items,): each item's own share."""

    compute_s: Floats
    memory_s: Floats

    def density(self, tree: PrefixTree) -> Floats:
        """(items,): (1-s)·ΣComp/ΣMem of each item with its descendants; the root's is the file's.

        Infinite where nothing is read from memory.
        """
        compute, memory = tree.sums(self.compute_s), tree.sums(self.memory_s)
        result: Floats = np.full(tree.items, np.inf)
        np.divide(compute, memory, out=result, where=memory > 0)
        return result


def demand(tree: PrefixTree, work: WorkModel, mean: Floats, square: Floats) -> WorkDemand:
    """The demand of requests whose output lengths have these means and mean squares, (n,).

    Tokens of a shared prefix are computed once, and this belongs to the prefix. Every request reads
    them from memory for itself.
    """
    compute = work.prefill_s(tree.begins, tree.depth)
    prompt = tree.prompt_tokens
    compute[: tree.requests] += work.decode_token_s * mean
    return WorkDemand(compute, tree.of_leaves(work.memory_s(prompt, mean, square)))


def blended(
    tree: PrefixTree,
    work: WorkModel,
    mean: Floats,
    square: Floats,
    share: float = SPLIT_SHARE,
    chunk: int = CHUNK_REQUESTS,
) -> tuple[PrefixTree, Ints]:
    """The tree after splitting within `share` of the saved tokens, and its order: densest first,
    `chunk` requests of a prefix as one.

    Sort and split take turns until no outlier is left or none fits the budget.
    """
    budget = int(share * tree.saved_tokens)
    for _ in range(_MOST_ROUNDS):
        saved = tree.saved_tokens
        tree = split(tree, _in_chunks(tree, demand(tree, work, mean, square), chunk), budget)
        budget -= saved - tree.saved_tokens
        if saved == tree.saved_tokens:
            break
    return tree, tree.order(-_in_chunks(tree, demand(tree, work, mean, square), chunk))


def _in_chunks(tree: PrefixTree, demand: WorkDemand, size: int) -> Floats:
    """(items,): compute density of each item. A request has the density of its chunk: up to `size`
    requests below the same prefix that are neighbours in the order of the file.

    Sorted one by one, requests of equal known length would be neighbours. They would begin, grow
    and end together, and the KV cache would be overfull and half empty in turn.
    """
    density, leaves = demand.density(tree), np.arange(tree.requests)
    ranked = np.argsort(tree.parent[leaves], kind="stable")
    parents = tree.parent[ranked]
    place = leaves - np.searchsorted(parents, parents)
    chunk = np.zeros(tree.requests, np.int64)
    chunk[ranked] = np.cumsum(place % size == 0) - 1
    compute, memory = (
        np.bincount(chunk, seconds[leaves]) for seconds in (demand.compute_s, demand.memory_s)
    )
    together = np.full(len(memory), np.inf)
    np.divide(compute, memory, out=together, where=memory > 0)
    density[leaves] = together[chunk]
    return density


def split(tree: PrefixTree, density: Floats, budget_tokens: int) -> PrefixTree:
    """The tree with outliers moved to the root, with at most `budget_tokens` computed again.

    A shared prefix whose children are sorted by density may be cut between two of them: the part
    behind the cut becomes a child of the root and computes the prefix again, at a cost of its
    depth. The inversions that a cut *fixes* are the requests whose density lies between its two
    sides, times the requests in its smaller part. Cuts that fix most inversions per token go first.
    """
    sizes = tree.sums(tree.of_leaves(np.ones(tree.requests)))
    ranked = np.lexsort((-density, tree.parent))
    ranked = ranked[tree.parent[ranked] > tree.root]
    parents = tree.parent[ranked]
    begins = np.flatnonzero(np.diff(parents, prepend=-1))
    total = np.add.reduceat(sizes[ranked], begins) if len(begins) else np.zeros(0)
    run = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(ranked)))
    upto = np.cumsum(sizes[ranked])
    left = upto - (upto[begins] - sizes[ranked[begins]])[run]
    sorted_leaves = np.sort(density[: tree.requests])
    place = np.searchsorted(sorted_leaves, density[ranked])
    between = np.append(place[:-1] - place[1:], 0)
    fixed = np.minimum(left, total[run] - left) * between  # 0 behind the last of siblings
    cost = tree.depth[parents]
    found = np.flatnonzero(fixed > 0)
    found = found[np.argsort(-fixed[found] / cost[found], kind="stable")]
    chosen = found[_affordable(cost[found], budget_tokens)]
    return _cut(tree, ranked, np.sort(chosen)) if len(chosen) else tree


def _affordable(costs: Ints, budget: int) -> Ints:
    """Indices of the `costs` that are paid, in order; those beyond the budget left are skipped."""
    paid = []
    for index, cost in enumerate(costs.tolist()):
        if cost <= budget:
            budget -= cost
            paid.append(index)
    return np.array(paid, np.int64)


def _cut(tree: PrefixTree, ranked: Ints, cuts: Ints) -> PrefixTree:
    """The tree with every run of siblings in `ranked` cut behind the positions `cuts`."""
    parents = tree.parent[ranked]
    parent = tree.parent.copy()
    piece = np.searchsorted(cuts, np.arange(len(ranked)))  # cuts in front of each position
    first = piece[np.searchsorted(parents, parents)]
    moved = np.flatnonzero(piece > first)
    nodes, number = np.unique(piece[moved], return_inverse=True)
    parent[ranked[moved]] = tree.items + number
    depth = tree.depth[parents[cuts[nodes - 1]]]
    roots = np.full(len(nodes), tree.root)
    return PrefixTree(
        tree.requests, np.concatenate((parent, roots)), np.concatenate((tree.depth, depth))
    )
