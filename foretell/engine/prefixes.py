"""An index of the prompt prefixes that an engine probably still has in its cache.

vLLM keeps the content of freed blocks until it needs them for something else, least recently used
first. A snapshot does not tell that content, but whoever dispatches to the engine knows what it was
sent: an index of that, with as many blocks as the engine has, forgets as the engine does.
"""

from collections import OrderedDict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import islice

from foretell.model import EngineConfig, RequestSpec

MAX_PENDING = 10_000
MAX_JOURNAL = 1 << 16
"""Changes that are kept for those who follow the index."""
_CONTRADICTED = 0.5
"""A smaller share of the hits that were believed contradicts the index; what is above may be due to
chunks of text having more or fewer tokens than the prompt has on average."""


@dataclass(slots=True)
class _Chunk:
    """A piece of a prompt, or (with a key of its own) the remainder of a prompt and its output."""

    blocks: float
    stamp: int
    """The number of the latest request that had it."""
    computed: bool = False
    """The engine was seen to run a request with it. Until then its absence says nothing."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A dispatched request that was not yet seen running."""

    prefix: tuple[int, ...]
    stamp: int
    hits: int
    """The cached tokens that it was believed to find."""
    prompt_tokens: int
    stamps: tuple[int, ...]
    """The stamps that the chunks it was believed to find had before; 0 where not yet computed."""


def leading(prefix: Sequence[int], known: Container[int]) -> int:
    """The number of leading chunks of `prefix` in `known`, where none lacks those before it."""
    least, most = 0, len(prefix)
    while least < most:
        middle = (least + most + 1) // 2
        if prefix[middle - 1] in known:
            least = middle
        else:
            most = middle - 1
    return least


def cached_tokens(request: RequestSpec, chunks: int, block_size_tokens: int) -> int:
    """Prompt tokens found with so many leading chunks: whole blocks, and never the last token."""
    tokens = min(int(chunks * request.prefix_chunk_tokens), request.prompt_tokens - 1)
    return tokens // block_size_tokens * block_size_tokens


class PrefixIndex:
    """The index of one engine with prefix caching, from its start on.

    It is bounded by the engine's own memory.

    A request's chunks are renewed when it is dispatched. They become free, and so the latest used,
    only when it ends, but an engine that serves in order of arrival frees in about that order.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._block_size = config.block_size_tokens
        # A block of tokens takes one of each KV cache group, also where a window leaves it behind.
        self._total_blocks = config.total_blocks // config.kv_cache_groups
        self._blocks = 0.0
        self._stamp = 0
        # Least recently used first, and of one request the last chunk first: as vLLM frees them.
        # So whoever is in it has its predecessors in it.
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._journal: deque[tuple[int, bool]] = deque(maxlen=MAX_JOURNAL)
        self.journal_end = 0
        """The number of changes of `chunks` so far."""

    @property
    def chunks(self) -> list[int]:
        """The chunks of prompts that are here."""
        return [key for key in self._chunks if key >= 0]

    def changes_since(self, number: int) -> dict[int, bool] | None:
        """The chunks that came (True) or went since there were `number` changes.

        None where that is too long ago to be known.
        """
        wanted = self.journal_end - number
        if wanted > len(self._journal):
            return None
        # The latest are at the right end, which is near; of one chunk the last word counts.
        latest = list(islice(reversed(self._journal), wanted))
        return dict(reversed(latest))

    @property
    def pending(self) -> list[str]:
        """Ids of the requests that were dispatched and not yet seen running, in that order."""
        return list(self._pending)

    def find(self, request: RequestSpec) -> int:
        """The prompt tokens that the engine would find: whole blocks, and never the last token."""
        return cached_tokens(request, leading(request.prefix, self._chunks), self._block_size)

    def believed(self, request_id: str) -> int:
        """The tokens that `find` gave for a pending request when it was dispatched; otherwise 0."""
        pending = self._pending.get(request_id)
        return pending.hits if pending else 0

    def reserve(self, request: RequestSpec) -> int:
        """Note that `request` is being dispatched; returns what `find` gives for it."""
        known = leading(request.prefix, self._chunks)
        hits = cached_tokens(request, known, self._block_size)
        self._stamp += 1
        if request.prefix:
            before = [self._chunks[key] for key in request.prefix[:known]]
            stamps = tuple(chunk.stamp if chunk.computed else 0 for chunk in before)
            self._pending[request.request_id] = _Pending(
                request.prefix, self._stamp, hits, request.prompt_tokens, stamps
            )
            if len(self._pending) > MAX_PENDING:
                self._pending.popitem(last=False)
        self._renew(request)
        return hits

    def admitted(self, request_id: str, cached_tokens: int, prompt_tokens: int) -> None:
        """The engine runs the request, of whose `prompt_tokens` it found so many cached.

        If that is much less than was believed, the first chunk that it did not find is gone, and so
        is all that was used before it.
        """
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        self._note_computed(pending)
        believed = pending.hits * prompt_tokens / pending.prompt_tokens
        if not believed or cached_tokens + self._block_size > _CONTRADICTED * believed:
            return
        gone = pending.stamps[int(cached_tokens / believed * len(pending.stamps))]
        while self._chunks and next(iter(self._chunks.values())).stamp <= gone:
            self._evict()

    def ended(self, request_id: str, *, answered: bool) -> None:
        """The request has ended. If it was neither answered nor seen running, nobody computed what
        it brought."""
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        if answered:
            self._note_computed(pending)
            return
        for key in (-pending.stamp, *pending.prefix[len(pending.stamps) :]):
            chunk = self._chunks.get(key)
            if chunk and chunk.stamp == pending.stamp and not chunk.computed:
                self._blocks -= chunk.blocks
                del self._chunks[key]
                self._note(key, cached=False)

    def _note_computed(self, pending: _Pending) -> None:
        for key in pending.prefix:
            if chunk := self._chunks.get(key):
                chunk.computed = True

    def _renew(self, request: RequestSpec) -> None:
        """Mark everything that the request will hold as the latest used."""
        chunk_tokens, stamp = request.prefix_chunk_tokens, self._stamp
        shared = min(len(request.prefix) * chunk_tokens, request.prompt_tokens)
        # Sequences of one prompt share it; without a prefix they may be of several prompts.
        prompts = 1 if request.prefix else request.sequences
        others = prompts * (request.prompt_tokens - shared)
        others += request.sequences * request.length.expected_tokens
        self._put(-stamp, max(1.0, others / self._block_size))
        for key in reversed(request.prefix):
            self._put(key, chunk_tokens / self._block_size)
        while self._blocks > self._total_blocks and self._chunks:
            self._evict()

    def _put(self, key: int, blocks: float) -> None:
        chunk = self._chunks.get(key)
        if chunk is None:
            self._chunks[key] = _Chunk(blocks, self._stamp)
            self._note(key, cached=True)
        else:
            self._blocks -= chunk.blocks
            chunk.blocks, chunk.stamp = blocks, self._stamp
            self._chunks.move_to_end(key)
        self._blocks += blocks

    def _evict(self) -> None:
        key, chunk = self._chunks.popitem(last=False)
        self._blocks -= chunk.blocks
        self._note(key, cached=False)

    def _note(self, key: int, *, cached: bool) -> None:
        if key >= 0:  # others are no chunks of prompts
            self._journal.append((key, cached))
            self.journal_end += 1
