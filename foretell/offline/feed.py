"""Feeds, which give an engine its requests one by one, and the counters that they use."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from foretell.offline.tree import PrefixTree
from foretell.offline.work import Ints

_FIRST_CAPACITY = 256
LEAST_STEP_TOKENS = 256
"""Prompt tokens of a step below which computing would not fill a GPU."""
UNTIL_SOMETHING_CHANGES = 1 << 30
"""A number of steps for when only a request's admission or end can matter."""
_READY = 64  # requests that wait in an engine which admits by itself


class Feed(Protocol):
    """Says which requests to send to an engine next; is told its steps and the ends of answers."""

    def admit(self, waiting: int) -> Sequence[int]:
        """Requests to send before the next step, while `waiting` have not begun on the engine.

        Every request comes once. An engine with neither running nor waiting requests gets one, as
        long as any is left.
        """
        ...

    def step_tokens(self) -> int:
        """The most tokens that the next step should compute, decodes included; 0: as many as fit.

        Engines with a fixed budget may ignore it, at the cost of uneven steps.
        """
        ...

    def unasked_steps(self) -> int:
        """Steps that the engine may make before it calls `admit` and `step_tokens` again, unless a
        request is admitted, preempted or ends before."""
        ...

    def stepped(self, steps: int) -> None:
        """The engine has made `steps` steps: each running request has that many more tokens."""
        ...

    def ended(self, request: int, tokens: int) -> None:
        """An answer has ended after `tokens` tokens."""
        ...


class Sequential:
    """Requests in a fixed order; the engine admits what has room, as engines do.

    The feeds of several engines may share one iterator: each takes the next requests.
    """

    def __init__(self, order: Iterable[int]) -> None:
        self._order = iter(order)

    def admit(self, waiting: int) -> Sequence[int]:
        return list(islice(self._order, max(0, _READY - waiting)))

    def step_tokens(self) -> int:
        return 0

    def unasked_steps(self) -> int:
        return UNTIL_SOMETHING_CHANGES

    def stepped(self, steps: int) -> None:
        """Do nothing: the order is fixed."""

    def ended(self, request: int, tokens: int) -> None:
        """Do nothing: the order is fixed."""


class InFlight:
    """The requests on an engine, with their ages in tokens and the KV cache they hold."""

    def __init__(self) -> None:
        self._columns = np.zeros((4, _FIRST_CAPACITY), np.int64)
        self._places: dict[int, int] = {}
        self._now = 0
        self.context_tokens = 0
        """Tokens that the next step reads from the KV cache: whole prompts and answers so far."""
        self.kv_tokens = 0
        """Those of them that no other request shares."""

    def __len__(self) -> int:
        return len(self._places)

    @property
    def requests(self) -> Ints:
        return self._columns[0, : len(self)]

    @property
    def ages(self) -> Ints:
        """Tokens that each has generated."""
        return self._now - self._columns[1, : len(self)]

    @property
    def own_tokens(self) -> Ints:
        """Prompt tokens that each shares with no other."""
        return self._columns[2, : len(self)]

    @property
    def prompt_tokens(self) -> Ints:
        return self._columns[3, : len(self)]

    def add(self, request: int, own: int, prompt: int, age: int = 0) -> None:
        """Add a request that holds `own` tokens of its prompt and has generated `age` tokens."""
        place = len(self._places)
        if place == self._columns.shape[1]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
        self._columns[:, place] = request, self._now - age, own, prompt
        self._places[request] = place
        self.context_tokens += prompt + age
        self.kv_tokens += own + age

    def move(self, request: int, to: "InFlight") -> None:
        """Move the request to `to`."""
        _, began, own, prompt = self._columns[:, self._places[request]].tolist()
        self.remove(request)
        to.add(request, own, prompt, self._now - began)

    def remove(self, request: int) -> None:
        place = self._places.pop(request)
        _, began, own, prompt = self._columns[:, place].tolist()
        age = self._now - began
        self.context_tokens -= prompt + age
        self.kv_tokens -= own + age
        last = len(self._places)
        if place != last:
            self._columns[:, place] = self._columns[:, last]
            self._places[int(self._columns[0, place])] = place

    def step(self, steps: int) -> None:
        self._now += steps
        self.context_tokens += steps * len(self._places)
        self.kv_tokens += steps * len(self._places)


class Uncached:
    """Tracks cached prefixes, and so which tokens of a prompt are still to be computed."""

    def __init__(self, tree: PrefixTree) -> None:
        self._parent = tree.parent.tolist()
        self._edge = (tree.depth - tree.begins).tolist()
        self._seen = bytearray(tree.items)

    def bring(self, request: int) -> int:
        """Tokens that `request` computes; from now on its prefixes are cached."""
        tokens, item = self._edge[request], self._parent[request]
        while item >= 0 and not self._seen[item]:
            self._seen[item] = 1
            tokens += self._edge[item]
            item = self._parent[item]
        return int(tokens)


class UsedPrefixes:
    """The shared prefixes that requests on an engine use at present."""

    def __init__(self, tree: PrefixTree) -> None:
        self.tokens = 0
        """KV tokens that they hold."""
        self._parent = tree.parent.tolist()
        self._edge = (tree.depth - tree.begins).tolist()
        self._users = [0] * tree.items

    def more(self, request: int) -> int:
        """KV tokens of the request's prefixes that no running request uses."""
        return sum(self._edge[item] for item in self._of(request) if not self._users[item])

    def use(self, request: int) -> None:
        for item in self._of(request):
            self._users[item] += 1
            if self._users[item] == 1:
                self.tokens += self._edge[item]

    def leave(self, request: int) -> None:
        """Release the prefixes of a request that has ended."""
        for item in self._of(request):
            self._users[item] -= 1
            if not self._users[item]:
                self.tokens -= self._edge[item]

    def _of(self, request: int) -> Iterator[int]:
        item = self._parent[request]
        while item >= 0:
            yield item
            item = self._parent[item]
