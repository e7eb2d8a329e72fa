"""An index of the prompt prefixes that an engine probably still has in its cache.

vLLM keeps the content of freed blocks until it needs them for something else, least recently used
first. Snapshots do not show that content, but schedulers know what they sent. An LRU index of what
was sent, with as many blocks as the engine has, evicts about what the engine evicts.
"""

from collections import OrderedDict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import islice

from foretell.model import EngineConfig, RequestSpec

MAX_PENDING = 10_000
MAX_JOURNAL = 1 << 16
"""The latest changes that are kept for followers of the index."""
_CONTRADICTED = 0.5
"""Hits below this share of the believed ones contradict the index. Smaller differences may be due
to chunks of text that have more or fewer tokens than the prompt's average."""
_ANSWERS_TOLD = 8
"""Time constant, in turns, of the share of answers that the next turn finds cached. It is low for
models whose thoughts are left out of the next prompt."""


@dataclass(slots=True)
class _Chunk:
    """A chunk of a prompt, or a tail: the rest of a prompt with its output. The key of a tail is
    the name of the whole prompt if it has one, otherwise a unique negative number."""

    blocks: float
    stamp: int
    """The number of the latest request that had it."""
    tail: bool = False
    computed: bool = False
    """Whether the engine was seen to run a request with it. Until then a miss proves nothing."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A dispatched request that was not yet seen running."""

    prefix: tuple[int, ...]
    tail: int
    """The key of its tail."""
    stamp: int
    hits: int
    """The cached tokens that it was believed to find."""
    answer: int
    """Those of `hits` that are found only thanks to the answer to the previous turn."""
    prompt_tokens: int
    stamps: tuple[int, ...]
    """The earlier stamps of the chunks it was believed to find; 0 where not yet computed."""


def leading(prefix: Sequence[int], known: Container[int]) -> int:
    """The number of leading chunks of `prefix` in `known`, which has all predecessors of each."""
    least, most = 0, len(prefix)
    while least < most:
        middle = (least + most + 1) // 2
        if prefix[middle - 1] in known:
            least = middle
        else:
            most = middle - 1
    return least


def cached_tokens(request: RequestSpec, chunks: int, block_size_tokens: int) -> int:
    """Prompt tokens in `chunks` leading chunks: whole blocks, and never the last token."""
    return _whole_blocks(request, chunks * request.prefix_chunk_tokens, block_size_tokens)


def answered_tokens(request: RequestSpec, known: Container[int], block_size_tokens: int) -> int:
    """Prompt tokens found if the previous turn with its answer is `known`; otherwise 0."""
    if not request.turn.before or request.turn.before not in known:
        return 0
    # The KV of an answer's last token is never computed.
    return _whole_blocks(request, request.turn.answered_tokens - 1.0, block_size_tokens)


def _whole_blocks(request: RequestSpec, tokens: float, block_size_tokens: int) -> int:
    return min(int(tokens), request.prompt_tokens - 1) // block_size_tokens * block_size_tokens


class PrefixIndex:
    """The index of one run of an engine with prefix caching, as large as its number of blocks.

    A request's chunks become the latest used when it is dispatched. In the engine they do only when
    it ends and frees them, but with service in order of arrival the order is about the same.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._block_size = config.block_size_tokens
        # A block of tokens takes a KV block of each KV cache group, even outside of a window.
        self._total_blocks = config.total_blocks // config.kv_cache_groups
        self._blocks = 0.0
        self._stamp = 0
        # Least recently used first, and of one request the last chunk first, as vLLM frees them.
        # So the predecessors of every chunk in it are in it, too.
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._answers_found = 1.0
        self._journal: deque[tuple[int, bool]] = deque(maxlen=MAX_JOURNAL)
        self.journal_end = 0
        """The number of changes of `chunks` so far."""

    @property
    def chunks(self) -> list[int]:
        """The cached chunks of prompts, and the names of prompts whose answers are cached."""
        return [key for key, chunk in self._chunks.items() if self._is_told(key, chunk)]

    def changes_since(self, number: int) -> dict[int, bool] | None:
        """The chunks that came (True) or went (False) since there were `number` changes.

        None if that is too long ago.
        """
        wanted = self.journal_end - number
        if wanted > len(self._journal):
            return None
        # The latest are at the right end, which is near; of each chunk the latest change counts.
        latest = list(islice(reversed(self._journal), wanted))
        return dict(reversed(latest))

    @property
    def pending(self) -> list[str]:
        """Ids of the requests that were not yet seen running, in the order of their dispatch."""
        return list(self._pending)

    def find(self, request: RequestSpec) -> int:
        """The prompt tokens that are believed cached: whole blocks, and never the last token."""
        of_prefix = cached_tokens(request, leading(request.prefix, self._chunks), self._block_size)
        return max(of_prefix, self._answered(request))

    def believed(self, request_id: str) -> int:
        """What `find` returned for a pending request when it was dispatched; 0 for others."""
        pending = self._pending.get(request_id)
        return pending.hits if pending else 0

    def reserve(self, request: RequestSpec) -> int:
        """Note that `request` is being dispatched; returns what `find` returns before that."""
        known = leading(request.prefix, self._chunks)
        of_prefix = cached_tokens(request, known, self._block_size)
        answer = max(0, self._answered(request) - of_prefix)
        self._stamp += 1
        tail = request.turn.prompt or -self._stamp
        if request.prefix or request.turn.prompt:
            before = [self._chunks[key] for key in request.prefix[:known]]
            stamps = tuple(chunk.stamp if chunk.computed else 0 for chunk in before)
            hits, prompt = of_prefix + answer, request.prompt_tokens
            self._pending[request.request_id] = _Pending(
                request.prefix, tail, self._stamp, hits, answer, prompt, stamps
            )
            if len(self._pending) > MAX_PENDING:
                self._pending.popitem(last=False)
        self._renew(request, tail)
        return of_prefix + answer

    def admitted(self, request_id: str, cached_tokens: int, prompt_tokens: int) -> None:
        """Note that the engine runs the request and found `cached_tokens` of its prompt.

        If that is much less than believed, the first chunk that it did not find was evicted, and so
        was all that was used less recently. Answers count apart: a miss may be due to another text.
        """
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        self._note_computed(pending)
        scale = prompt_tokens / pending.prompt_tokens
        believed = (pending.hits - pending.answer) * scale
        if pending.answer:
            found = (cached_tokens - believed) / (pending.answer * scale)
            self._learn(min(1.0, max(0.0, found)))
        if not believed or cached_tokens + self._block_size > _CONTRADICTED * believed:
            return
        gone = pending.stamps[int(cached_tokens / believed * len(pending.stamps))]
        while self._chunks and next(iter(self._chunks.values())).stamp <= gone:
            self._evict()

    def ended(self, request_id: str, *, answered: bool) -> None:
        """Note that the request has ended. If it was neither answered nor seen running, its new
        chunks were never computed, and are dropped."""
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        if answered:
            self._note_computed(pending)
            return
        for key in (pending.tail, *pending.prefix[len(pending.stamps) :]):
            chunk = self._chunks.get(key)
            if chunk and chunk.stamp == pending.stamp and not chunk.computed:
                self._blocks -= chunk.blocks
                del self._chunks[key]
                self._note(key, chunk, cached=False)

    def _note_computed(self, pending: _Pending) -> None:
        for key in (pending.tail, *pending.prefix):
            if chunk := self._chunks.get(key):
                chunk.computed = True

    def _answered(self, request: RequestSpec) -> int:
        """`answered_tokens`; 0 where engines do not find answers."""
        if not self._finds_answers:
            return 0
        return answered_tokens(request, self._chunks, self._block_size)

    @property
    def _finds_answers(self) -> bool:
        return self._answers_found >= _CONTRADICTED

    def _learn(self, found: float) -> None:
        """Note that a turn found that share of the answer before it. When the mean becomes too low,
        followers are told that all answers are gone."""
        before = self._finds_answers
        self._answers_found += (found - self._answers_found) / _ANSWERS_TOLD
        if before and not self._finds_answers:
            for key, chunk in self._chunks.items():
                if chunk.tail and key >= 0:
                    self._journal.append((key, False))
                    self.journal_end += 1

    def _renew(self, request: RequestSpec, tail: int) -> None:
        """Mark everything that the request will hold as the latest used."""
        chunk_tokens = request.prefix_chunk_tokens
        shared = min(len(request.prefix) * chunk_tokens, request.prompt_tokens)
        # Sequences of one prompt share its blocks; without a prefix the prompts may differ.
        prompts = 1 if request.prefix else request.sequences
        others = prompts * (request.prompt_tokens - shared)
        others += request.sequences * request.length.expected_tokens
        self._put(tail, max(1.0, others / self._block_size), tail=True)
        for key in reversed(request.prefix):
            self._put(key, chunk_tokens / self._block_size)
        while self._blocks > self._total_blocks and self._chunks:
            self._evict()

    def _put(self, key: int, blocks: float, *, tail: bool = False) -> None:
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = _Chunk(blocks, self._stamp, tail)
            self._note(key, chunk, cached=True)
        else:
            self._blocks -= chunk.blocks
            chunk.blocks, chunk.stamp = blocks, self._stamp
            self._chunks.move_to_end(key)
        self._blocks += blocks

    def _evict(self) -> None:
        key, chunk = self._chunks.popitem(last=False)
        self._blocks -= chunk.blocks
        self._note(key, chunk, cached=False)

    def _note(self, key: int, chunk: _Chunk, *, cached: bool) -> None:
        if self._is_told(key, chunk):
            self._journal.append((key, cached))
            self.journal_end += 1

    def _is_told(self, key: int, chunk: _Chunk) -> bool:
        """Whether followers hear of it: not of unnamed tails, nor of tails that engines miss."""
        return key >= 0 and (self._finds_answers or not chunk.tail)
