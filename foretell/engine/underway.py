"""The requests on their way to an engine, as known to a follower of its predictor."""

from collections import OrderedDict
from collections.abc import Sequence

from foretell.engine.prefixes import answered_tokens, cached_tokens, leading
from foretell.engine.questions import ExpectedArrival, is_certain
from foretell.model import EngineConfig, RequestSpec


class Underway:
    """Requests that the predictor has published, and those that the follower sent since."""

    def __init__(self, told: Sequence[ExpectedArrival] = (), dispatch_delay_s: float = 0.0) -> None:
        self.changes = 0
        """Incremented with every change."""
        self.dispatch_delay_s = dispatch_delay_s
        """Seconds from a dispatch to the engine's queue."""
        self.reserved = 0
        """The number of sequences on their way."""
        self.certain = True
        """Whether the lengths of all of them are certain."""
        self.rows: Sequence[ExpectedArrival] = ()
        """The requests on their way, in the order in which they were dispatched."""
        self.expected: Sequence[ExpectedArrival] = ()
        """The requests that will probably arrive without having been announced."""
        self.prefixes: set[int] = set()
        self.block_size_tokens = 0
        """0: the engine has no prefix cache."""
        self._told = list(told)
        self._own: OrderedDict[int, tuple[RequestSpec, ExpectedArrival]] = OrderedDict()
        self._changed()

    def announce(self, number: int, request: RequestSpec, row: ExpectedArrival) -> None:
        """Add `request`, which the follower announced to the predictor by that notice."""
        self._own[number] = request, row
        self._changed()

    def revise(self, request: RequestSpec, row: ExpectedArrival) -> None:
        """Replace the row of `request`, if it is still counted as the follower's own. Its
        `cached_tokens` stay."""
        for number, (known, before) in self._own.items():
            if known.request_id == request.request_id:
                self._own[number] = request, row._replace(cached_tokens=before.cached_tokens)
        self._changed()

    def tell(self, rows: Sequence[ExpectedArrival], notices: int) -> None:
        """Take in a new snapshot: its `rows` are on their way, including those of other schedulers.
        It takes the first `notices` notices of the follower into account."""
        known = [number for number in self._own if number <= notices]
        if rows or known or self._told:
            self._told = list(rows)
            self._drop(known)

    def forget(self, request_id: str) -> None:
        """Remove a request that has ended, if it is counted as the follower's own."""
        self._drop([n for n, (request, _) in self._own.items() if request.request_id == request_id])

    def begin(self) -> None:
        """Restart the numbers of notices: forget the follower's own requests."""
        self._drop(list(self._own))

    def reserved_blocks(self, config: EngineConfig) -> int:
        """KV blocks that the prompts on their way need on an engine with `config`."""
        return sum([row.sequences * config.blocks_for(row.prompt) for row in self.rows])

    def cached_tokens(self, request: RequestSpec) -> int:
        """Tokens of the request's prompt that the engine is believed to find in its cache."""
        if not self.block_size_tokens or not (request.prefix or request.turn.before):
            return request.cached_tokens
        chunks = leading(request.prefix, self.prefixes)
        for sent, _ in self._own.values():
            chunks = max(chunks, _common(request.prefix, sent.prefix))
        found = cached_tokens(request, chunks, self.block_size_tokens)
        answered = answered_tokens(request, self.prefixes, self.block_size_tokens)
        return max(found, answered, request.cached_tokens)

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            del self._own[number]
        self._changed()

    def _changed(self) -> None:
        self.rows = rows = self._told + [row for _, row in self._own.values()]
        self.reserved = sum([row.sequences for row in rows])
        self.certain = all(is_certain(row.length) for row in rows)
        self.changes += 1


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of leading chunks that two prompts share."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
