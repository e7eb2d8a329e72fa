"""Waiting offline requests: length buckets with a radix tree each, as in Echo.

A node of a tree is a block of a prompt. vLLM's block hash covers all earlier tokens too, so it
identifies a node, and equal prefixes have equal hashes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

WIDEST = 64
"""The most branches of a node that are searched, the oldest first."""
MOST_PASSED_OVER = 4
"""Bound on starvation: the oldest request is the only candidate once the admissions since it came
are this many times the number of waiting requests."""

IsResident = Callable[[bytes], bool]
_ROOT = b""


class OfflineCandidate(NamedTuple):
    """A waiting offline request that could be admitted."""

    key: int
    resident_blocks: int
    """The number of leading blocks of its prompt that are cached."""


class _Node:
    __slots__ = ("branches", "ends", "requests")

    def __init__(self) -> None:
        self.branches: dict[bytes, None] = {}
        self.ends: dict[int, None] = {}
        """Requests whose prompts end here, oldest first; in a leaf also its only request, which may
        have more blocks."""
        self.requests = 0


class _Entry:
    __slots__ = ("bucket", "came", "came_after", "hashes")

    def __init__(self, hashes: Sequence[bytes], bucket: int, came: int, came_after: int) -> None:
        self.hashes = hashes
        self.came = came
        """The number of requests that came before it."""
        self.bucket = bucket
        self.came_after = came_after
        """The number of admissions before it came."""


class OfflinePool:
    """The waiting offline requests by key, oldest first, and the candidates among them."""

    def __init__(self, most_passed_over: float = MOST_PASSED_OVER) -> None:
        """`most_passed_over`: see `MOST_PASSED_OVER`; 0 serves requests in order of arrival."""
        self._most_passed_over = most_passed_over
        self._entries: dict[int, _Entry] = {}
        self._trees: dict[int, dict[bytes, _Node]] = {}
        self._came = self._admissions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def hashes(self, key: int) -> Sequence[bytes]:
        """Return the block hashes with which a request was added."""
        return self._entries[key].hashes

    def add(self, key: int, hashes: Sequence[bytes], tokens: int) -> None:
        """Add a request with a prompt of `tokens`. Raises ValueError if it waits already."""
        if key in self._entries:
            raise ValueError(f"{key} waits already")
        bucket = max(tokens, 1).bit_length()
        self._entries[key] = _Entry(hashes, bucket, self._came, self._admissions)
        self._came += 1
        tree = self._trees.setdefault(bucket, {})
        node = tree.setdefault(_ROOT, _Node())
        node.requests += 1
        for depth, each in enumerate(hashes, 1):
            is_new = each not in node.branches
            node = _below(tree, node, each)
            if is_new:
                break
            if node.requests == 2:  # until now this was a leaf with one request
                self._move_down(tree, node, depth)
        node.ends[key] = None

    def _move_down(self, tree: dict[bytes, _Node], node: _Node, depth: int) -> None:
        for key in list(node.ends):
            hashes = self._entries[key].hashes
            if len(hashes) > depth:
                del node.ends[key]
                _below(tree, node, hashes[depth]).ends[key] = None

    def remove(self, key: int, *, admitted: bool = False) -> None:
        """Remove a request. Raises KeyError if it does not wait."""
        entry = self._entries.pop(key)
        self._admissions += admitted
        tree = self._trees[entry.bucket]
        path, node = [_ROOT], tree[_ROOT]
        while key not in node.ends:
            path.append(entry.hashes[len(path) - 1])
            node = tree[path[-1]]
        del node.ends[key]
        for each in path:
            tree[each].requests -= 1
        for before, each in pairwise(path):
            if not tree[each].requests:
                tree[before].branches.pop(each, None)
        for each in path:
            if not tree[each].requests:
                del tree[each]
        if not tree:
            del self._trees[entry.bucket]

    def candidates(self, is_resident: IsResident) -> list[OfflineCandidate]:
        """Return one request of each bucket: by the longest resident prefix, then the prefix that
        most requests share, then age.

        The oldest comes first. The oldest request is the only one if it was passed over too often.
        """
        if not self._entries:
            return []
        oldest = next(iter(self._entries))
        entry = self._entries[oldest]
        if self._admissions - entry.came_after >= self._most_passed_over * len(self._entries):
            return [OfflineCandidate(oldest, _leading(entry.hashes, is_resident))]
        found = [self._search(tree, is_resident) for tree in self._trees.values()]
        return sorted(found, key=lambda candidate: self._entries[candidate.key].came)

    def _search(self, tree: dict[bytes, _Node], is_resident: IsResident) -> OfflineCandidate:
        node, resident_blocks, on_resident = tree[_ROOT], 0, True
        while True:
            chosen = None
            if on_resident:
                chosen = _widest(tree, node, is_resident)
                resident_blocks += chosen is not None
                on_resident = chosen is not None
            if chosen is None:
                if node.ends:
                    key = next(iter(node.ends))
                    rest = self._entries[key].hashes[resident_blocks:]
                    return OfflineCandidate(key, resident_blocks + _leading(rest, is_resident))
                chosen = _widest(tree, node, lambda _: True)
                assert chosen is not None, "a node without requests was kept"
            node = tree[chosen]


def _below(tree: dict[bytes, _Node], node: _Node, each: bytes) -> _Node:
    """The node of a block after `node`, with one more request."""
    node.branches.setdefault(each)
    below = tree.setdefault(each, _Node())
    below.requests += 1
    return below


def _widest(tree: dict[bytes, _Node], node: _Node, fits: IsResident) -> bytes | None:
    """The branch with the most requests among those that fit."""
    found, most = None, 0
    for count, branch in enumerate(node.branches):
        if count == WIDEST:
            break
        requests = tree[branch].requests
        if requests > most and fits(branch):
            found, most = branch, requests
    return found


def _leading(hashes: Sequence[bytes], is_resident: IsResident) -> int:
    for count, each in enumerate(hashes):
        if not is_resident(each):
            return count
    return len(hashes)
