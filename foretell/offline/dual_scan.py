"""BlendServe's dual scan: the order is consumed from both ends, each with its part of the memory.

Section 5.3 and Algorithm 3 of the paper, with the mean square of lengths, and with shared prefixes
distinguished: they are computed and held once, and read by every request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretell.offline.feed import LEAST_STEP_TOKENS, UNTIL_SOMETHING_CHANGES, InFlight, Uncached
from foretell.offline.lengths import LengthMoments
from foretell.offline.ordering import WorkDemand
from foretell.offline.tree import PrefixTree
from foretell.offline.work import Floats, Ints

UNIT_REQUESTS, UNIT_SHARE = 256, 1 / 64
"""The most neighbours in the order that form one unit, and the largest share of work in it."""
_LEFT, _RIGHT = 0, 1
_SLACK = 1.1  # of a step's prompt tokens beyond C_L + C_R: no backlog grows
_LOOK_STEPS = 64  # steps between two searches for overdue answers
_OVERDUE = 2.0  # times its expected length: then an answer of the left end counts as the right's


def memory_split(memory: float, root: float, left: float, right: float) -> tuple[float, float]:
    """Parts of `memory` in which densities `left` and `right` blend to `root`.

    If `root` is not between them, the nearer end gets all; but if `left` is not above `right`, both
    get equal parts.
    """
    if left <= right:
        return memory / 2, memory / 2
    share = min(1.0, max(0.0, (root - right) / (left - right)))
    return memory * share, memory * (1.0 - share)


@dataclass(frozen=True, slots=True)
class _Units:
    """Means of the requests of each unit, (units,)."""

    number: Ints
    """(n,): the unit at each position of the order."""
    density: Floats
    own: Floats
    """Uncached prompt tokens."""
    prompt: Floats
    mean: Floats
    square: Floats

    @staticmethod
    def of(order: Ints, tree: PrefixTree, demand: WorkDemand, lengths: LengthMoments) -> "_Units":
        work = demand.compute_s[order] / demand.compute_s.sum()
        work += demand.memory_s[order] / max(float(demand.memory_s.sum()), 1e-30)
        parts = np.floor(np.cumsum(work) / (2.0 * UNIT_SHARE)).astype(np.int64)
        parts = parts * len(order) + np.arange(len(order)) // UNIT_REQUESTS
        begins = np.flatnonzero(np.diff(parts, prepend=-1))

        def sums(values: Floats | Ints) -> Floats:
            total: Floats = np.add.reduceat(values[order].astype(np.float64), begins)
            return total

        count = np.diff(begins, append=len(order))
        own = (tree.depth - tree.begins)[: tree.requests]
        density = sums(demand.compute_s) / np.maximum(sums(demand.memory_s), 1e-30)
        number = np.repeat(np.arange(len(begins)), count)
        return _Units(
            number,
            density,
            sums(own) / count,
            sums(tree.prompt_tokens) / count,
            sums(lengths.mean) / count,
            sums(lengths.square) / count,
        )


class DualScan:
    """Feeds one engine from the most compute-intensive and the most memory-intensive end."""

    def __init__(
        self,
        tree: PrefixTree,
        order: Ints,
        demand: WorkDemand,
        lengths: LengthMoments,
        kv_tokens: int,
        first: Sequence[int] = (),
    ) -> None:
        """`order`: the tree's requests, densest first. `kv_tokens`: the KV cache's size.

        `first`: sampled requests, which are sent before the others.
        """
        early = set(first)
        self._first = list(first)[::-1]
        self._order = np.array([r for r in order.tolist() if r not in early], np.int64)
        self._root = float(demand.density(tree)[tree.root])
        self._units = _Units.of(self._order, tree, demand, lengths) if len(self._order) else None
        self._expected = lengths.mean
        self._memory = float(kv_tokens)
        self._ends = [0, len(self._order)]
        """Positions in the order: of the next request on the left, and one past the right one."""
        self._now = (-1, -1)  # the units that both ends are in
        self._most, self._pace, self._credit = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        self._holds = _held(tree, lengths).tolist()
        self._charged = [0.0, 0.0]
        self._flights = (InFlight(), InFlight())
        self._side: dict[int, int] = {}
        self._uncached = Uncached(tree)
        self._prompts = tree.prompt_tokens.tolist()
        self._steps = 0

    def admit(self, waiting: int) -> Sequence[int]:
        if waiting:
            return ()
        chosen: list[int] = []
        while self._first and len(self._side) * self._mean_held() < self._memory:
            chosen.append(self._send(_LEFT, self._first.pop()))
        if self._first:
            return chosen
        for side in (_LEFT, _RIGHT):
            self._enter_units()
            self._credit[side] = min(self._credit[side], 0.0) + self._pace[side]
            # The right end is short of memory and not of prompts: it fills its part at once.
            while self._more and (side or self._credit[side] > 0) and self._room(side):
                chosen.append(self._send(side, self._next(side)))
                self._enter_units()
        if not chosen and not self._side and self._more:
            chosen.append(self._send(_LEFT, self._next(_LEFT)))
        return chosen

    def step_tokens(self) -> int:
        if self._first or not self._more:
            return 0
        return len(self._side) + max(LEAST_STEP_TOKENS, int(_SLACK * sum(self._pace)))

    def unasked_steps(self) -> int:
        return 1 if self._more else UNTIL_SOMETHING_CHANGES

    def stepped(self, steps: int) -> None:
        before = self._steps // _LOOK_STEPS
        self._steps += steps
        for flight in self._flights:
            flight.step(steps)
        if self._steps // _LOOK_STEPS > before:
            self._move_overdue()

    def ended(self, request: int, tokens: int) -> None:
        side = self._side.pop(request)
        self._flights[side].remove(request)
        self._charged[side] -= self._holds[request]

    @property
    def _more(self) -> bool:
        return self._ends[_LEFT] < self._ends[_RIGHT]

    def _mean_held(self) -> float:
        """KV tokens that a sampled request is expected to hold on average."""
        units = self._units
        return float((units.own + units.mean).mean()) if units else 0.0

    def _room(self, side: int) -> bool:
        return self._charged[side] < max(1.0, self._most[side])

    def _next(self, side: int) -> int:
        if side == _LEFT:
            self._ends[_LEFT] += 1
            return int(self._order[self._ends[_LEFT] - 1])
        self._ends[_RIGHT] -= 1
        return int(self._order[self._ends[_RIGHT]])

    def _send(self, side: int, request: int) -> int:
        own = self._uncached.bring(request)
        self._credit[side] -= own
        self._charged[side] += self._holds[request]
        self._flights[side].add(request, own, self._prompts[request])
        self._side[request] = side
        return request

    def _enter_units(self) -> None:
        """Divide the memory again if an end has entered another unit."""
        units = self._units
        if units is None or not self._more:
            return
        places = (self._ends[_LEFT], self._ends[_RIGHT] - 1)
        now = (int(units.number[places[0]]), int(units.number[places[1]]))
        if now == self._now:
            return
        self._now = now
        shares = memory_split(1.0, self._root, *(float(units.density[unit]) for unit in now))
        answers = [float(units.square[u] / (2.0 * max(1.0, units.mean[u]))) for u in now]
        held = [float(units.own[u]) + answer for u, answer in zip(now, answers, strict=True)]
        read = [float(units.prompt[u]) + answer for u, answer in zip(now, answers, strict=True)]
        # Densities blend by what is read, and shared prefixes are read more often than held.
        reading = self._memory / sum(s * h / r for s, h, r in zip(shares, held, read, strict=True))
        for side, unit in enumerate(now):
            mean = max(1.0, float(units.mean[unit]))
            number = reading * shares[side] / read[side]
            self._most[side] = number * held[side]
            self._pace[side] = number * max(1.0, float(units.own[unit])) / mean

    def _move_overdue(self) -> None:
        """Let answers of the left end that turn out long count for the right end's memory."""
        left, right = self._flights
        late = left.requests[left.ages > _OVERDUE * self._expected[left.requests] + 1]
        for request in late.tolist():
            place = int(np.flatnonzero(left.requests == request)[0])
            own = int(left.own_tokens[place] + left.ages[place])
            left.remove(request)
            right.add(request, own, self._prompts[request])
            self._side[request] = _RIGHT
            self._charged[_LEFT] -= self._holds[request]
            self._holds[request] = float(own)
            self._charged[_RIGHT] += self._holds[request]


def _held(tree: PrefixTree, lengths: LengthMoments) -> Floats:
    """(n,): KV tokens of its own that each request holds on average while it runs."""
    own = (tree.depth - tree.begins)[: tree.requests]
    result: Floats = own + lengths.square / (2.0 * np.maximum(1.0, lengths.mean))
    return result
