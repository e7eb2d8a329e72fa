"""Prompts as a compressed prefix tree, which says which requests share which tokens.

The tree consists of columns. Its *items* are the requests, 0 to n-1, which are its leaves, and from
n on the prefixes that several of them share; the root is item n. Every item has a parent and a
depth: the tokens from the beginning of the prompt to the end of the item.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foretell.offline.work import Floats, Ints

Prompt = Sequence[int] | NDArray[np.int64]
"""The tokens of a prompt."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class PrefixTree:
    """Requests by their prompts. Immutable; aggregates cost O(items)."""

    def __init__(self, requests: int, parent: Ints, depth: Ints) -> None:
        """`parent` and `depth`, (items,), as in the module's docstring; the root's parent is -1.

        A shared prefix is longer than that of its parent.
        """
        self.requests = requests
        self.parent = parent
        self.depth = depth
        self._levels = _levels(requests, parent, depth)

    @property
    def root(self) -> int:
        """The item that all others descend from."""
        return self.requests

    @property
    def items(self) -> int:
        return len(self.parent)

    @property
    def prompt_tokens(self) -> Ints:
        """(n,): tokens of each prompt."""
        return self.depth[: self.requests]

    @property
    def begins(self) -> Ints:
        """(items,): the depth at which each item begins, its parent's."""
        return np.where(self.parent < 0, 0, self.depth[self.parent])

    @property
    def saved_tokens(self) -> int:
        """Prompt tokens that need no computing when every shared prefix is computed once."""
        return int(self.prompt_tokens.sum() - (self.depth - self.begins).sum())

    @property
    def sharing_ratio(self) -> float:
        """Share of all prompt tokens that need no computing; 0 without prompts."""
        return self.saved_tokens / max(1, int(self.prompt_tokens.sum()))

    def sums(self, values: Floats) -> Floats:
        """(items,): for each item the sum of `values`, (items,), over it and its descendants."""
        result = values.astype(np.float64)
        for items in reversed(self._levels[1:]):
            result += np.bincount(self.parent[items], result[items], self.items)
        return result

    def of_leaves(self, values: Floats) -> Floats:
        """(items,): `values` of the requests, and 0 for shared prefixes."""
        result = np.zeros(self.items)
        result[: self.requests] = values
        return result

    def inherited(self, items: NDArray[np.bool_]) -> Ints:
        """(items,): for each item the nearest of the marked `items`, itself or an ancestor.

        The root counts as marked.
        """
        result = np.full(self.items, self.root)
        for level in self._levels[1:]:
            result[level] = np.where(items[level], level, result[self.parent[level]])
        return result

    def order(self, keys: Floats) -> Ints:
        """(n,): requests in depth-first order, the children of each item by ascending `keys`.

        `keys`: (items,). Equal keys keep the order of the items' numbers.
        """
        sizes = self.sums(self.of_leaves(np.ones(self.requests))).astype(np.int64)
        ranked = np.lexsort((np.arange(self.items), keys, self.parent))
        before = np.cumsum(sizes[ranked]) - sizes[ranked]
        parents = self.parent[ranked]
        first = np.searchsorted(parents, parents)  # where each run of siblings begins
        begin = np.zeros(self.items, np.int64)
        begin[ranked] = before - before[first]
        for items in self._levels[1:]:
            begin[items] += begin[self.parent[items]]
        return np.argsort(begin[: self.requests], kind="stable")

    def first_seen(self) -> Ints:
        """(n,): requests in depth-first order, siblings as they were given."""
        least = np.arange(self.items)
        least[self.requests :] = self.requests
        for items in reversed(self._levels[1:]):
            np.minimum.at(least, self.parent[items], least[items])
        return self.order(least.astype(np.float64))


def prefix_tree(prompts: Iterable[Prompt], block_tokens: int = 16) -> PrefixTree:
    """The tree of `prompts`, which are read once and not kept.

    Prefixes are shared in whole blocks of `block_tokens`, as engines cache them. For every block a
    digest of 64 bits is kept, or the token itself if blocks have one token.
    """
    keys: list[bytes] = []
    lengths: list[int] = []
    for prompt in prompts:
        tokens = np.asarray(prompt, np.uint32)
        lengths.append(len(tokens))
        keys.append(_key(tokens, block_tokens))
    ranked = sorted(range(len(keys)), key=keys.__getitem__)
    kind: np.dtype[np.unsignedinteger] = np.dtype("uint32" if block_tokens == 1 else "uint64")
    blocks = [_common(keys[one], keys[other], kind) for one, other in pairwise(ranked)]
    return _compressed(ranked, [block_tokens * common for common in (0, *blocks)], lengths)


def _key(tokens: NDArray[np.uint32], block_tokens: int) -> bytes:
    """The key of a prompt's whole blocks: equal bytes for equal blocks."""
    if block_tokens == 1:
        return tokens.tobytes()
    blocks = len(tokens) // block_tokens
    rows = tokens[: blocks * block_tokens].reshape(blocks, block_tokens).astype(np.uint64)
    # A multilinear hash: the powers of an odd constant stand for random coefficients.
    digest: NDArray[np.uint64] = rows @ (
        _MULTIPLIER ** np.arange(1, block_tokens + 1, dtype=np.uint64)
    )
    return digest.tobytes()


def _common(one: bytes, other: bytes, kind: np.dtype[np.unsignedinteger]) -> int:
    """Blocks that two keys have in common at their beginning."""
    size = min(len(one), len(other))
    if not size or one[: kind.itemsize] != other[: kind.itemsize]:
        return 0
    if one[:size] == other[:size]:
        return size // kind.itemsize
    count = size // kind.itemsize
    differ = np.frombuffer(one, kind, count) != np.frombuffer(other, kind, count)
    return int(differ.argmax())


def _compressed(ranked: Sequence[int], common: Sequence[int], lengths: Sequence[int]) -> PrefixTree:
    """The tree of prompts in the order `ranked`, each of which shares `common` tokens with the one
    before. The first number in `common` is 0; it is there even without prompts.
    """
    requests = len(ranked)
    parent, depth = [-1] * (requests + 1), [*lengths, 0]
    # The path to the latest request, deepest last, and how deep each item may still branch.
    path, ends = [requests], [0]
    for request, shared in zip(ranked, common, strict=False):
        below = -1
        while ends[-1] > shared:
            below = path.pop()
            ends.pop()
        if ends[-1] < shared:
            node = len(parent)
            parent.append(path[-1])
            depth.append(shared)
            parent[below] = node
            path.append(node)
            ends.append(shared)
        parent[request] = path[-1]
        path.append(request)
        ends.append(lengths[request] + 1)  # a leaf never has children, even an equal prompt
    return PrefixTree(requests, np.array(parent, np.int64), np.array(depth, np.int64))


def _levels(requests: int, parent: Ints, depth: Ints) -> list[Ints]:
    """Items by their distance from the root."""
    level = [0] * (len(parent) - requests)
    nodes = np.argsort(depth[requests:], kind="stable")  # parents before their children
    above = (parent[requests:] - requests).tolist()
    for node in nodes.tolist():
        if above[node] >= 0 and node:
            level[node] = level[above[node]] + 1
    deep = np.array(level, np.int64)
    all_levels = np.concatenate((deep[parent[:requests] - requests] + 1, deep))
    ranked = np.argsort(all_levels, kind="stable")
    bounds = np.flatnonzero(np.diff(all_levels[ranked])) + 1
    return np.split(ranked, bounds)
